"""Progress of a run: a live panel on a terminal, plain lines in a pipe, nothing when Detent is used as a library."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from detent.config import Config

Row = dict[str, Any]
PLAIN_INTERVAL = 10.0
"""Seconds between plain lines."""


class Reporter(Protocol):
    def start(self, config: Config, path: Path, notes: tuple[str, ...]) -> None: ...
    def iteration(self, row: Row, wall_time: float) -> None: ...
    def evaluation(self, row: Row) -> None: ...
    def checkpoint(self, path: Path, kind: str) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Reports nothing: the default when Detent is used as a library."""

    def start(self, config: Config, path: Path, notes: tuple[str, ...]) -> None: ...
    def iteration(self, row: Row, wall_time: float) -> None: ...
    def evaluation(self, row: Row) -> None: ...
    def checkpoint(self, path: Path, kind: str) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


def describe(config: Config) -> str:
    """Return the first line of a run's output: what it trains, and the settings resolved for this machine."""
    plan = f"{config.total_steps:,} steps"
    if config.total_steps != config.steps:
        random = f"{config.warmup:,} random ones and " if config.warmup else ""
        whole = f"{random}whole iterations of {config.batch_size:,}"
        plan = f"{config.steps:,} steps, rounded up to {config.total_steps:,} ({whole})"
    scale = "" if config.scale == "auto" else f" at {config.scale} scale"
    seen = "" if config.env.obs == "state" else f" from {config.env.obs}"
    return (
        f"{config.task}{seen} · {config.variant} · {config.algo} · preset {config.preset}{scale} · "
        f"seed {config.seed} · {plan} · "
        f"{config.env.num_envs} environments ({config.env.backend}) · {config.threads} threads · {config.device}"
        f"{'' if config.update.engine == 'auto' else f' · {config.update.engine} engine'}"
    )


PLAYS = {"stochastic": "sampled", "deterministic": "most probable"}
"""The two ways to choose actions in an evaluation: their keys in its row, and the words shown to users."""


def evaluation_line(row: Row) -> str:
    """Format an evaluation as one line, with the normalized score and the paper's at the same step if they exist."""
    parts = [f"eval at {row['step']:,}:"]
    for play, shown in PLAYS.items():
        result = row[play]
        score = "" if result["score"] is None else f" (score {result['score']:.2f})"
        success = ""
        if "success_once" in result:
            success = f", success {result['success_once']:.2f} (at end {result['success_at_end']:.2f})"
        parts.append(f"{shown} {result['return']:.1f} ± {result['std']:.1f}{score}{success}")
    if row["paper_score"] is not None:
        parts.append(f"paper {row['paper_score']:.2f}")
    return "  ".join(parts)


def time_left(row: Row, config: Config) -> str:
    seconds = max(0.0, config.total_steps - row["step"]) / row["time/sps"]
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class PipeConsole(Console):
    """Goes silent when its reader exits: Ctrl-C also ends the `tee` after a run, which must not cost the checkpoint."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PlainLines:
    """Prints one line per event, for iterations at most one every few seconds."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PipeConsole(soft_wrap=True, highlight=False)
        self._last = float("-inf")
        self._return: float | None = None

    def start(self, config: Config, path: Path, notes: tuple[str, ...]) -> None:
        self._config = config
        for line in (describe(config), f"run directory {path}", *notes):
            self.message(line)

    def iteration(self, row: Row, wall_time: float) -> None:
        self._return = self._return if row["return"] is None else row["return"]
        now = time.monotonic()
        if now - self._last < PLAIN_INTERVAL and row["iteration"] != self._config.iterations:
            return
        self._last = now
        shown = "-" if self._return is None else f"{self._return:.1f}"
        # A baseline reports neither.
        kl = row.get("approx_kl", row.get("kl"))
        policy = "" if kl is None else f"kl {kl:.4f}  entropy {row['entropy']:.2f}  "
        self.message(
            f"step {row['step']:,}/{self._config.total_steps:,}  return {shown}  {policy}"
            f"sps {row['time/sps']:.0f}  left {time_left(row, self._config)}"
        )

    def evaluation(self, row: Row) -> None:
        self.message(evaluation_line(row))

    def checkpoint(self, path: Path, kind: str) -> None:
        self.message(f"checkpoint {path} ({kind})")

    def message(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None: ...


class LivePanel:
    """A panel redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.completed:,}/{task.total:,} steps"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]} left"),
        )
        self._live = Live(console=console, refresh_per_second=4)
        self._evaluation = "no evaluation yet"
        self._row: Row = {}
        self._return: float | None = None

    def start(self, config: Config, path: Path, notes: tuple[str, ...]) -> None:
        self._config, self._path = config, path
        self._bar = self._progress.add_task("", total=config.total_steps, left="?")
        for line in (describe(config), *notes):
            self.message(line)
        self._live.start()
        self._draw()

    def iteration(self, row: Row, wall_time: float) -> None:
        self._row = row
        self._return = self._return if row["return"] is None else row["return"]
        self._progress.update(self._bar, completed=row["step"], left=time_left(row, self._config))
        self._draw()

    def evaluation(self, row: Row) -> None:
        self._evaluation = evaluation_line(row)
        self._draw()

    def checkpoint(self, path: Path, kind: str) -> None: ...

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        numbers = Table.grid(padding=(0, 3))
        shown = {
            "return": self._return,
            "steps/s": self._row.get("time/sps"),
            "kl": self._row.get("approx_kl", self._row.get("kl")),
            "entropy": self._row.get("entropy"),
            "clipped": self._row.get("clip_fraction"),
            "value loss": self._row.get("value_loss"),
        }
        numbers.add_row(
            *(f"[dim]{name}[/] {'-' if value is None else f'{value:.4g}'}" for name, value in shown.items())
        )
        body = Group(self._progress, numbers, self._evaluation)
        self._live.update(Panel(body, title=Text(str(self._path)), title_align="left"))


def make_reporter() -> Reporter:
    console = Console()
    return LivePanel(console) if console.is_terminal else PlainLines()
