"""A study's directory: the plan, a run directory and a log for each run, and their progress.

    study.toml     the study, complete        plan/<id>.toml   a run's configuration
    study.json     its runs                   runs/<id>/       its run directory
    lock           the process that runs it   logs/<id>.log    its output

Everything is read from these files, so any machine that sees the directory can show the progress.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from detent.config.io import to_dict
from detent.errors import ConfigError
from detent.study.plan import Study
from detent.training.run_directory import lock_holder, write_json

Status = Literal["waiting", "running", "interrupted", "failed", "finished"]
STATUSES: tuple[Status, ...] = ("running", "failed", "interrupted", "waiting", "finished")
_TAIL = 65536
"""Bytes at the end of a file that contain its last row."""

Entry = dict[str, Any]
"""A run as recorded in study.json."""


@dataclass(frozen=True)
class RunState:
    """Status and progress of a run."""

    id: str
    status: Status
    step: int = 0
    total_steps: int = 0
    steps_per_second: float | None = None
    evaluation: dict[str, Any] | None = None
    """The last evaluation with sampled actions."""
    reason: str | None = None
    """Why the run failed, or which process holds it."""
    log: str | None = None
    swept: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return run_label(self.id, self.swept)

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds left; None while unknown."""
        if self.status == "finished":
            return 0.0
        if self.status != "running" or not self.steps_per_second:
            return None
        return (self.total_steps - self.step) / self.steps_per_second

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "seconds_left": self.seconds_left}


def run_label(run: str, swept: Mapping[str, Any]) -> str:
    """Return a run's id with its swept settings, such as `ant-v4-rn-d-ppo-s1-3f2a (head.bins=101)`."""
    return f"{run} ({sweep_text(swept)})" if swept else run


def sweep_text(swept: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in swept.items())


def swept_of(entry: Entry) -> dict[str, Any]:
    """Return a run's swept settings; an older study.json has them among the study's other settings only."""
    return dict(entry["swept"] if "swept" in entry else entry.get("overrides") or {})


def write_study(directory: Path, study: Study) -> list[Entry]:
    """Write the plan, or extend an existing one; return the runs' entries. Call this with the directory's lock held."""
    entries = [run.entry() for run in study.runs]
    for name in ("plan", "runs", "logs"):
        (directory / name).mkdir(exist_ok=True)
    for run in study.runs:
        _write_toml(plan_path(directory, run.id), to_dict(run.config))
    _write_toml(directory / "study.toml", study.source())
    content = {"name": study.name, "description": study.description, "cites": study.cites, "runs": entries}
    write_json(directory / "study.json", content)
    return entries


def _write_toml(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically if it is missing or differs; not synced, since the study writes it again."""
    text = tomli_w.dumps(content)
    if not path.exists() or path.read_text() != text:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)


def require_same_study(directory: Path, study: Study) -> None:
    """Refuse a directory that holds another study, runs that are not part of this one, or anything else."""
    if not (directory / "study.json").exists():
        # A study killed before it wrote its plan leaves a lock and perhaps these directories.
        known = {"lock", "plan", "runs", "logs"}
        others = [p.name for p in directory.iterdir() if p.name not in known and not p.name.startswith(".")]
        if others:
            raise ConfigError(f"{directory} is not empty and holds no study ({others[0]}, ...); choose another --out")
        return
    there = read_study(directory)
    if there["name"] != study.name:
        raise ConfigError(f"{directory} holds the study '{there['name']}', not '{study.name}'; choose another --out")
    gone = {entry["id"] for entry in there["runs"]} - {run.id for run in study.runs}
    if gone:
        raise ConfigError(
            f"{directory} holds another version of '{study.name}': {len(gone)} of its {len(there['runs'])} runs are "
            f"not part of this one (for instance {min(gone)}); choose another --out"
        )


def read_study(directory: Path) -> dict[str, Any]:
    path = directory / "study.json"
    if not path.exists():
        raise ConfigError(f"{directory} is not a study directory: it has no study.json")
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    return content


def plan_path(directory: Path, run: str) -> Path:
    return directory / "plan" / f"{run}.toml"


def log_path(directory: Path, run: str) -> Path:
    return directory / "logs" / f"{run}.log"


def failure_path(directory: Path, run: str) -> Path:
    """Return the file that records a run's failure; a run may fail before it has a directory of its own."""
    return directory / "logs" / f"{run}.failed.json"


def read_state(directory: Path, entry: Entry) -> RunState:
    """Read a run's status and progress from the files it has written."""
    run = directory / entry["path"]
    info = _read_json(run / "run.json") or {}
    failure = _read_json(failure_path(directory, entry["id"]))
    holder = lock_holder(run)
    status: Status
    reason: str | None = None
    if info.get("status") == "finished":
        status = "finished"
    elif holder is not None:
        status, reason = "running", holder
    elif failure is not None or info.get("status") == "failed":
        status, reason = "failed", (failure or {}).get("reason") or info.get("exit_reason")
    else:
        status = "interrupted" if (run / "config.toml").exists() else "waiting"
    row, evaluation = last_row(run / "metrics.jsonl") or {}, last_row(run / "evals.jsonl")
    log = log_path(directory, entry["id"])
    return RunState(
        entry["id"],
        status,
        int(row.get("step", 0)),
        entry["total_steps"],
        row.get("time/sps"),
        None if evaluation is None else evaluation["stochastic"],
        reason,
        str(log) if log.exists() else None,
        swept_of(entry),
    )


def last_row(path: Path) -> dict[str, Any] | None:
    """Return the last complete row of a `.jsonl` file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        return row
    return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return content
