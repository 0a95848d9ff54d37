"""One run as a `detent train` process of its own: start or exactly resume it, stop it, and report how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detent.config.io import load_config
from detent.study.directory import Entry, failure_path, log_path, plan_path, read_state
from detent.training.plugins import imports_of
from detent.training.run_directory import lock_holder, write_json

_CHILD = (sys.executable, "-m", "detent.cli.child")
STOPPED = 3
"""Exit code of a run that was asked to stop and has saved a checkpoint."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended. `killed`: by a signal from outside, so a retry may succeed."""

    kind: Literal["finished", "stopped", "killed", "failed"]
    reason: str = ""


class RunProcess:
    """The process of one run of a study, from the first `advance()` to the `Outcome` it returns."""

    def __init__(self, directory: Path, entry: Entry, environment: Mapping[str, str] | None = None) -> None:
        self.directory, self.entry = directory, entry
        self.path = directory / entry["path"]
        self._environment = {"OMP_NUM_THREADS": str(entry["threads"]), "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def advance(self) -> Outcome | None:
        """Start the process if due, and return its outcome once it has ended; never wait."""
        if self._process is None:
            if self._stopping:
                return Outcome("stopped")
            if lock_holder(self.path) is not None:
                # A process left behind by a killed engine is still saving, or it continues and will finish.
                return None
            if read_state(self.directory, self.entry).status == "finished":
                return Outcome("finished")
            self._start()
            return None
        code = self._process.poll()
        return None if code is None else self._outcome(code)

    def stop(self) -> None:
        """Ask the process to finish its iteration, save a checkpoint and exit."""
        if self._process is not None and not self._stopping:
            self._process.send_signal(signal.SIGTERM)
        self._stopping = True

    def kill(self) -> None:
        """Kill the process now; the run can be resumed from its last scheduled checkpoint."""
        self._stopping = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        failure_path(self.directory, self.entry["id"]).unlink(missing_ok=True)
        # In a session of its own: Ctrl-C on the terminal should reach only the engine, which asks its runs to stop.
        with log_path(self.directory, self.entry["id"]).open("ab") as log:
            self._process = subprocess.Popen(
                [*_CHILD, str(os.getpid()), *train_words(self.directory, self.entry)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def _outcome(self, code: int) -> Outcome:
        if code == 0:
            return Outcome("finished")
        if self._stopping:
            return Outcome("stopped")
        if code == STOPPED:
            return Outcome("killed", "stopped by a signal from outside")
        if code < 0:
            hint = " (the system does this when memory runs out)" if -code == signal.SIGKILL else ""
            return Outcome("killed", f"killed by signal {-code}{hint}")
        return Outcome("failed", _last_line(log_path(self.directory, self.entry["id"])) or f"exit code {code}")


def train_words(directory: Path, entry: Entry) -> list[str]:
    """Return the command for a run: resume exactly from its last scheduled checkpoint, or start if there is none."""
    run = directory / entry["path"]
    if (run / "config.toml").exists() and not _stopped_before_any_schedule(run):
        return ["train", "--resume", str(run), "--exact", *_trust(directory, entry)]
    shutil.rmtree(run, ignore_errors=True)
    return ["train", "--config", str(plan_path(directory, entry["id"])), "--out", str(run)]


def _trust(directory: Path, entry: Entry) -> list[str]:
    """Trust a run's files as far as they name what the study's own plan names, and no further."""
    planned, found = (
        load_config(path) for path in (plan_path(directory, entry["id"]), directory / entry["path"] / "config.toml")
    )
    return ["--trust"] if imports_of(found) <= imports_of(planned) else []


def note_failure(directory: Path, entry: Entry, reason: str) -> None:
    """Record the failure of a run that is given up, for `detent study status`."""
    write_json(failure_path(directory, entry["id"]), {"id": entry["id"], "reason": reason})


def _stopped_before_any_schedule(run: Path) -> bool:
    """Return whether a run was stopped and saved, but never at a point from which resuming is exact."""
    kinds = set()
    for state in (run / "checkpoints").glob("[0-9]*/state.json"):
        try:
            kinds.add(json.loads(state.read_text())["kind"])
        except (ValueError, KeyError):
            # A damaged checkpoint is for `--resume` to deal with.
            return False
    return "final" in kinds and "scheduled" not in kinds


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4096))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
