from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from detent.acceleration.worker_group import WorkerGroup, shared_zeros, supported
from detent.threads import core_numbers

pytestmark = pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)")


def test_parts_cover_everything_once() -> None:
    for size in (1, 2, 3, 7):
        group = WorkerGroup(size)
        parts = []
        for rank in range(size):
            group.rank = rank
            part = group.shard(10)
            parts += list(range(10))[part]
        assert parts == list(range(10))


def test_shared_tensors_have_their_type_and_shape_and_start_at_zero() -> None:
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
        tensor = shared_zeros((3, 2), dtype)
        assert tensor.shape == (3, 2)
        assert tensor.dtype == dtype
        assert (tensor == 0).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_add_up_and_see_each_others_memory(size: int) -> None:
    group = WorkerGroup(size)
    seen = shared_zeros((size, 4), torch.float64)

    def work() -> None:
        for i in range(4):
            seen[group.rank, i] = group.sum(torch.tensor([10.0**group.rank + i]))[0]
        group.barrier()

    group.start(work)
    for _ in range(2):
        seen.zero_()
        group.barrier()
        work()
        expected = [sum(10.0**rank + i for rank in range(size)) for i in range(4)]
        assert seen.tolist() == [expected] * size
    group.close()


def test_processes_have_a_core_each_where_there_is_one_for_each() -> None:
    cores = core_numbers()
    for size in {2, min(len(cores), 4)} - {1}:
        group = WorkerGroup(size)

        def where(group: WorkerGroup = group) -> list[list[int]]:
            with group.pinned_core():
                return group.gather(core_numbers())

        group.start(where)
        group.barrier()
        assert where() == [[cores[rank]] if size == len(cores) else cores for rank in range(size)]
        assert core_numbers() == cores
        group.close()


def test_the_first_process_gathers_what_all_have() -> None:
    group = WorkerGroup(3)
    # More than a socket holds at once.
    group.start(lambda: group.gather([group.rank, "x" * 10**6 * group.rank]))
    for _ in range(2):
        group.barrier()
        assert group.gather([0, ""]) == [[rank, "x" * 10**6 * rank] for rank in range(3)]
    os.kill(group._pids[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"update process 1 \(of 3\) was killed by SIGKILL"):
        group.gather([0, ""])


def test_closing_ends_the_processes() -> None:
    group = WorkerGroup(2)
    with pytest.raises(RuntimeError, match="have not been started, or are closed"):
        group.barrier()
    group.start(lambda: None)
    (pid,) = group._pids.values()
    group.close()
    with pytest.raises(RuntimeError, match="have not been started, or are closed"):
        group.barrier()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def meet_often(group: WorkerGroup) -> None:
    for _ in range(3):
        group.barrier()


def test_a_process_that_is_killed_is_named() -> None:
    group = WorkerGroup(2)
    group.start(group.barrier)
    (pid,) = group._pids.values()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"update process 1 \(of 2\) was killed by SIGKILL"):
        meet_often(group)
    group.close()


def test_of_several_processes_the_one_that_was_killed_is_named() -> None:
    group = WorkerGroup(3)
    group.start(group.barrier)
    os.kill(group._pids[2], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"update process 2 \(of 3\) was killed by SIGKILL"):
        meet_often(group)


def test_a_process_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ArithmeticError("the reason")

    group = WorkerGroup(2)
    group.start(work)
    with pytest.raises(RuntimeError, match="ended with exit code 1"):
        meet_often(group)
    group.close()
    assert "the reason" in capfd.readouterr().err


@pytest.mark.parametrize("busy", [False, True])
def test_the_others_go_when_the_first_process_is_killed(busy: bool) -> None:
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        group = WorkerGroup(2)
        group.start(lambda: time.sleep(600) if busy else group.barrier())
        group.barrier()
        os.write(writer, str(*group._pids.values()).encode())
        while True:
            group.barrier()
    other = int(os.read(reader, 100))
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    for _ in range(1000):
        if not is_running(other):
            break
        time.sleep(0.01)
    assert not is_running(other)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
