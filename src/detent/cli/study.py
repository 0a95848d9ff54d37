"""`detent study run STUDY` and `detent study status DIR`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg, subcommand

from detent.cli.train import STOPPED
from detent.errors import ConfigError
from detent.threads import usable_cores

if TYPE_CHECKING:
    from detent.study.directory import RunState
    from detent.study.display import Display
    from detent.study.engine import Engine
    from detent.study.plan import Study as Plan


@dataclass(frozen=True)
class Study:
    """Run many trainings from one file and show their progress: detent study run STUDY · detent study status DIR."""

    command: Annotated[
        Annotated[Run, subcommand("run")] | Annotated[Status, subcommand("status")],
        arg(name=""),
    ]

    def run(self) -> int:
        return self.command.run()


@dataclass(frozen=True)
class Run:
    """Run what is missing of a study: interrupted runs resume, failed ones are tried again."""

    study: Positional[str]
    """A study's name (`detent list studies`) or a TOML file."""
    out: Path | None = None
    """Directory of the study; default studies/<name>."""
    engine: Literal["local", "ray"] = "local"
    """`local`: processes on this machine; `ray`: a Ray cluster."""
    workers: int = 0
    """Concurrent runs on this machine; 0: as many as its cores allow, given the threads of each run."""
    address: str | None = None
    """ray: the cluster (HOST:PORT or auto), from one of its machines; by default one is started on this machine."""
    gpus: float = 0.0
    """ray: GPUs per run, possibly a fraction; with 0 a run sees none. A run gets as many CPUs as it has threads."""
    retries: int = 2
    """How often to restart a run that was killed or lost its node; a run that failed by itself is not restarted."""
    dry_run: bool = False
    """Only list the runs."""

    def run(self) -> int:
        from detent.study.directory import run_label
        from detent.study.display import counts, make_display
        from detent.study.engine import run_study
        from detent.study.plan import load_study

        self._check()
        study = load_study(self.study)
        if self.dry_run:
            for run in study.runs:
                print(run_label(run.id, run.swept))
            print(f"{len(study.runs)} runs, {sum(run.config.total_steps for run in study.runs):,} steps in all")
            return 0
        directory = self.out or Path("studies") / study.name
        display = make_display()
        summary = run_study(study, directory, self._make_engine(study, display), display, self.retries)
        print(f"{directory}: {counts(summary.states)}")
        for state in summary.failed:
            print(_failure(state))
        if summary.stopped:
            print("stopped on request; run the same command to resume")
            return STOPPED
        return 0 if summary.finished == len(summary.states) else 1

    def _check(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"--workers is {self.workers}; it must not be negative (0: by the cores)")
        if self.retries < 0:
            raise ConfigError(f"--retries is {self.retries}; it must not be negative")
        if self.engine == "local" and (self.address is not None or self.gpus):
            raise ConfigError("--address and --gpus go with --engine ray")
        if self.address is not None and self.workers:
            raise ConfigError("--workers is for this machine; a cluster at --address runs as much as it has room for")

    def _make_engine(self, study: Plan, display: Display) -> Engine:
        threads = max(run.config.threads for run in study.runs)
        workers = self.workers or max(1, usable_cores() // threads)
        if self.engine == "local":
            from detent.study.local import LocalEngine

            return LocalEngine(workers)
        from detent.study.ray import RayEngine

        return RayEngine(self.address, workers * threads, self.gpus, display.message)


@dataclass(frozen=True)
class Status:
    """Show the progress of a study, from any machine that sees its directory."""

    directory: Annotated[Positional[Path], arg(metavar="DIR")]
    """Directory of the study."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.study.directory import STATUSES, read_state, read_study
        from detent.training.run_directory import lock_holder

        study = read_study(self.directory)
        holder = lock_holder(self.directory)
        states = [read_state(self.directory, entry) for entry in study["runs"]]
        if self.json:
            found = {status: sum(state.status == status for state in states) for status in STATUSES}
            report = {"study": study["name"], "directory": str(self.directory), "run_by": holder, "counts": found}
            print(json.dumps(report | {"runs": [state.to_dict() for state in states]}))
            return 0
        from rich.console import Console

        from detent.study.display import clock, counts, runs_table, study_left

        console = Console()
        console.print(runs_table(sorted(states, key=lambda state: STATUSES.index(state.status))))
        for state in states:
            if state.status == "failed":
                console.print(_failure(state), soft_wrap=True, highlight=False, markup=False)
        who = f"run by {holder}" if holder else "not running"
        left = f"; about {clock(study_left(states))} left" if holder else ""
        console.print(f"study {study['name']}: {counts(states)}; {who}{left}", soft_wrap=True, highlight=False)
        return 0


def _failure(state: RunState) -> str:
    return f"failed {state.label}: {state.reason} (log {state.log})"
