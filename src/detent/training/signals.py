"""Stop on request: the first signal stops after the iteration, a second Ctrl-C at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While active, SIGINT and SIGTERM set `requested`; a second SIGINT interrupts at once.

    Only the main thread of a process receives signals; in another thread this does nothing.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.requested = False
        self._tell = tell
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        # The signal may have interrupted a print, which cannot be nested; the checkpoint matters more than any display.
        with contextlib.suppress(Exception):
            self._tell("stopping after this iteration, with a checkpoint (Ctrl-C again stops at once)")
