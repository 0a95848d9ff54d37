"""The local engine: runs a few `detent train` processes at a time on this machine."""

from __future__ import annotations

from pathlib import Path

from detent.errors import ConfigError
from detent.study.directory import Entry
from detent.study.process import Outcome, RunProcess


class LocalEngine:
    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"--workers is {workers}; it must be at least 1")
        self._workers = workers
        self._active: list[RunProcess] = []

    def free(self) -> bool:
        return len(self._active) < self._workers

    def start(self, directory: Path, entry: Entry) -> None:
        self._active.append(RunProcess(directory, entry))

    def poll(self) -> list[tuple[Entry, Outcome]]:
        ended = [(process, outcome) for process in self._active if (outcome := process.advance()) is not None]
        for process, _ in ended:
            self._active.remove(process)
        return [(process.entry, outcome) for process, outcome in ended]

    def stop(self) -> None:
        for process in self._active:
            process.stop()

    def close(self) -> None:
        for process in self._active:
            process.kill()
