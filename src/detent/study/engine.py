"""Run a study on any engine: start the missing runs, watch them, restart killed ones, report failed ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from detent.errors import ConfigError
from detent.study.directory import Entry, RunState, log_path, read_state, require_same_study, write_study
from detent.study.display import Display
from detent.study.plan import Study
from detent.study.process import Outcome, note_failure
from detent.training.run_directory import acquire_lock, release_lock
from detent.training.signals import StopRequest

LOOK = 0.2
"""Seconds between two checks of the processes."""
REFRESH = 1.0
"""Seconds between two reads of the running runs' files."""


class Engine(Protocol):
    """Executes the runs of a study."""

    def free(self) -> bool:
        """Return whether the engine can take another run."""
        ...

    def start(self, directory: Path, entry: Entry) -> None: ...

    def poll(self) -> list[tuple[Entry, Outcome]]:
        """Return the runs that ended since the last call."""
        ...

    def stop(self) -> None:
        """Ask all runs to save a checkpoint and exit."""
        ...

    def close(self) -> None:
        """End all remaining runs at once."""
        ...


@dataclass(frozen=True)
class Summary:
    """State of a study when the engine is done."""

    states: tuple[RunState, ...]
    stopped: bool
    """Whether the study was stopped on request before all runs were done."""

    @property
    def finished(self) -> int:
        return sum(state.status == "finished" for state in self.states)

    @property
    def failed(self) -> list[RunState]:
        return [state for state in self.states if state.status == "failed"]


def run_study(study: Study, directory: Path, engine: Engine, display: Display, retries: int = 2) -> Summary:
    """Run what is missing of a study; runs that failed before are tried again."""
    directory = directory.resolve()
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        stack.callback(display.close)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be created ({error.strerror}); choose another --out") from None
        # Also checked before locking: the lock would leave a file in a directory that is not ours.
        require_same_study(directory, study)
        lock = acquire_lock(directory)
        stack.callback(release_lock, lock)
        require_same_study(directory, study)
        entries = write_study(directory, study)
        states = {entry["id"]: read_state(directory, entry) for entry in entries}
        display.start(study, directory, states)
        missing = [entry for entry in entries if states[entry["id"]].status != "finished"]
        stopped = _Loop(directory, engine, display, retries, states).run(missing, lock.fileno())
        return Summary(tuple(read_state(directory, entry) for entry in entries), stopped)


class _Loop:
    def __init__(
        self, directory: Path, engine: Engine, display: Display, retries: int, states: dict[str, RunState]
    ) -> None:
        self.directory, self.engine, self.display, self.retries = directory, engine, display, retries
        self.states = states
        self.tries: Counter[str] = Counter()
        self.queue: deque[Entry] = deque()
        self.active: dict[str, Entry] = {}
        self.refreshed = float("-inf")

    def run(self, missing: list[Entry], lock: int) -> bool:
        """Loop until all runs are done, or have ended after a stop request; return whether they were stopped."""
        self.queue.extend(missing)
        with StopRequest(self.display.message) as stop:
            asked = False
            while self.active or (self.queue and not stop.requested):
                while self.queue and self.engine.free() and not stop.requested:
                    entry = self.queue.popleft()
                    self.active[entry["id"]] = entry
                    self.engine.start(self.directory, entry)
                    self.display.started(entry)
                if stop.requested and not asked:
                    self.engine.stop()
                    asked = True
                for entry, outcome in self.engine.poll():
                    self._ended(entry, outcome)
                os.utime(lock)
                self._refresh()
                time.sleep(LOOK)
        return stop.requested and any(state.status != "finished" for state in self.states.values())

    def _ended(self, entry: Entry, outcome: Outcome) -> None:
        del self.active[entry["id"]]
        self.tries[entry["id"]] += 1
        if outcome.kind == "killed" and self.tries[entry["id"]] <= self.retries:
            self.display.message(f"{entry['id']}: {outcome.reason}; starting it again")
            self.queue.appendleft(entry)
        elif outcome.kind in ("killed", "failed"):
            note_failure(self.directory, entry, outcome.reason)
            self.display.failed(entry, outcome.reason, log_path(self.directory, entry["id"]))
        state = self.states[entry["id"]] = read_state(self.directory, entry)
        if outcome.kind == "finished":
            self.display.finished(state)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self.refreshed >= REFRESH:
            self.refreshed = now
            for run, entry in self.active.items():
                self.states[run] = read_state(self.directory, entry)
            self.display.update(self.states, set(self.active))
