"""The first signal asks, the second Ctrl-C insists, and afterwards everything is as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from detent.training.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_and_tells(number: signal.Signals) -> None:
    told: list[str] = []
    with StopRequest(told.append) as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert told == ["stopping after this iteration, with a checkpoint (Ctrl-C again stops at once)"]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_interrupts_at_once(first: signal.Signals) -> None:
    with StopRequest(lambda _: None):
        os.kill(os.getpid(), first)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_sigterm_only_asks_again() -> None:
    # Schedulers send it repeatedly; losing the checkpoint to impatience helps nobody.
    with StopRequest(lambda _: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def test_handlers_are_restored_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.suppress(ZeroDivisionError), StopRequest(lambda _: None):
        assert signal.getsignal(signal.SIGINT) not in before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_in_the_middle_of_printing_does_not_end_the_run() -> None:
    def nested_print(_: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with StopRequest(nested_print) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def test_in_another_thread_handlers_are_left_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with StopRequest(lambda _: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
