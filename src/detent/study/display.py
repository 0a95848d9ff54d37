"""Progress of a study: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from detent.study.directory import STATUSES, Entry, RunState, run_label, sweep_text, swept_of
from detent.study.plan import Study
from detent.training.progress import PLAIN_INTERVAL, PipeConsole

States = Mapping[str, RunState]
_LINES_AROUND = 6
"""Terminal lines that the table of runs leaves free."""


class Display(Protocol):
    def start(self, study: Study, directory: Path, states: States) -> None: ...
    def started(self, entry: Entry) -> None: ...
    def finished(self, state: RunState) -> None: ...
    def failed(self, entry: Entry, reason: str, log: Path) -> None: ...
    def update(self, states: States, active: Collection[str]) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


def clock(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds; `-` while unknown."""
    if seconds is None:
        return "-"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def counts(states: Iterable[RunState]) -> str:
    """Return the number of runs by status, such as `3 finished, 2 running`."""
    found = Counter(state.status for state in states)
    return ", ".join(f"{found[status]} {status}" for status in reversed(STATUSES) if found[status])


def study_left(states: Iterable[RunState]) -> float | None:
    """Return the seconds until all runs are done, at the total speed of those running now; None while unknown."""
    states = [state for state in states if state.status not in ("finished", "failed")]
    rate = sum(state.steps_per_second or 0.0 for state in states if state.status == "running")
    if not rate:
        return None if states else 0.0
    return sum(state.total_steps - state.step for state in states) / rate


def played(state: RunState) -> str:
    """Format the last evaluation in a few characters."""
    if state.evaluation is None:
        return "-"
    if "success_once" in state.evaluation:
        return f"{state.evaluation['success_once']:.2f} success"
    return f"{state.evaluation['return']:.1f}"


def runs_table(states: Iterable[RunState]) -> Table:
    states = list(states)
    rows = Table(box=None, pad_edge=False)
    swept = ["swept"] if any(state.swept for state in states) else []
    for column in ("run", *swept, "status", "progress", "steps/s", "left", "evaluation"):
        rows.add_column(
            column,
            justify="left" if column in ("run", "swept", "status") else "right",
            no_wrap=column not in ("run", "swept"),
        )
    for state in states:
        share = state.step / state.total_steps
        speed = "-" if state.steps_per_second is None else f"{state.steps_per_second:.0f}"
        values = [sweep_text(state.swept)] if swept else []
        rows.add_row(state.id, *values, state.status, f"{share:.0%}", speed, clock(state.seconds_left), played(state))
    return rows


class PlainLines:
    """Prints a line when something happens, and the overall progress every few seconds."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PipeConsole(soft_wrap=True, highlight=False)
        self._last = time.monotonic()

    def start(self, study: Study, directory: Path, states: States) -> None:
        self.message(f"study {study.name} in {directory}: {len(states)} runs, {counts(states.values())}")

    def started(self, entry: Entry) -> None:
        self.message(f"begin {run_label(entry['id'], swept_of(entry))}")

    def finished(self, state: RunState) -> None:
        self.message(f"finished {state.label}: {state.step:,} steps, evaluation {played(state)}")

    def failed(self, entry: Entry, reason: str, log: Path) -> None:
        self.message(f"failed {run_label(entry['id'], swept_of(entry))}: {reason} (log {log})")

    def update(self, states: States, active: Collection[str]) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_INTERVAL:
            return
        self._last = now
        going = "  ".join(
            f"{run} {states[run].step / states[run].total_steps:.0%}"
            for run in sorted(active)
            if states[run].status == "running"
        )
        self.message(f"{counts(states.values())}; about {clock(study_left(states.values()))} left  {going}".rstrip())

    def message(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None: ...


class LiveTable:
    """A table of runs, active ones first, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4)

    def start(self, study: Study, directory: Path, states: States) -> None:
        self.message(f"study {study.name} in {directory}: {len(states)} runs")
        self._live.start()
        self.update(states, ())

    def started(self, entry: Entry) -> None: ...

    def finished(self, state: RunState) -> None:
        self.message(f"finished {state.label}: {state.step:,} steps, evaluation {played(state)}")

    def failed(self, entry: Entry, reason: str, log: Path) -> None:
        self.message(f"failed {run_label(entry['id'], swept_of(entry))}: {reason} (log {log})")

    def update(self, states: States, active: Collection[str]) -> None:
        order = sorted(states.values(), key=lambda state: (state.id not in active, STATUSES.index(state.status)))
        shown = order[: max(1, self._console.height - _LINES_AROUND)]
        parts: list[Table | Text] = [runs_table(shown)]
        if len(shown) < len(order):
            parts.append(Text(f"... and {len(order) - len(shown)} more"))
        parts.append(Text(f"{counts(states.values())}; about {clock(study_left(states.values()))} left"))
        self._live.update(Group(*parts))

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def make_display() -> Display:
    console = Console()
    return LiveTable(console) if console.is_terminal else PlainLines()
