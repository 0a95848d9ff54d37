"""Callbacks that show a run's progress: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from detent.config import Config
from detent.training.callbacks import Callback, Row, RunContext, Status
from detent.training.run_directory import read_rows

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines."""


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
        f"{config.env.num_envs} environment{_s(config.env.num_envs)} ({config.env.backend}) · "
        f"{config.threads} thread{_s(config.threads)} · {config.device}"
        f"{'' if config.update.engine == 'auto' else f' · {config.update.engine} engine'}"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


READOUT_WORDS = {"stochastic": "sampled", "deterministic": "most probable", "mean": "expected"}
"""The readouts of an evaluation: their keys in its row, and the words shown to users."""


def evaluation_parts(row: Row) -> list[str]:
    """Format an evaluation, with the normalized score and the paper's at the same step if they exist."""
    parts = [f"eval at {row['step']:,}:"]
    for key, shown in READOUT_WORDS.items():
        result = row[key]
        if result is None or result["return"] is None:
            parts.append(f"{shown} -")
            continue
        score = "" if result["score"] is None else f" (score {result['score']:.2f})"
        success = ""
        if "success_once" in result:
            success = f", success {result['success_once']:.2f} (at end {result['success_at_end']:.2f})"
        parts.append(f"{shown} {result['return']:.1f} ± {result['std']:.1f}{score}{success}")
    if row["paper_score"] is not None:
        parts.append(f"paper {row['paper_score']:.2f}")
    return parts


def time_left(row: Row, config: Config) -> str:
    seconds = max(0.0, config.total_steps - row["step"]) / row["time/sps"]
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class PipeConsole(Console):
    """Goes silent when its reader exits: Ctrl-C also ends the `tee` after a run, which must not cost the checkpoint."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PlainLines(Callback):
    """Prints one line per event, for iterations at most one every few seconds."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PipeConsole(soft_wrap=True, highlight=False)
        self._last = float("-inf")
        self._return: float | None = None

    def on_run_start(self, run: RunContext) -> None:
        for line in (describe(run.config), f"run directory {run.path}", *run.notes):
            self.on_message(line)

    def on_iteration(self, run: RunContext, row: Row) -> None:
        self._return = self._return if row["return"] is None else row["return"]
        now = time.monotonic()
        if now - self._last < PLAIN_INTERVAL and row["iteration"] != run.config.iterations:
            return
        self._last = now
        shown = "-" if self._return is None else f"{self._return:.1f}"
        # A baseline reports neither.
        kl = row.get("approx_kl", row.get("kl"))
        policy = "".join(
            f"{name} {value:.{digits}f}  "
            for name, value, digits in (("kl", kl, 4), ("entropy", row.get("entropy"), 2))
            if value is not None
        )
        self.on_message(
            f"step {row['step']:,}/{run.config.total_steps:,}  return {shown}  {policy}"
            f"sps {row['time/sps']:.0f}  left {time_left(row, run.config)}"
        )

    def on_evaluation(self, run: RunContext, row: Row) -> None:
        self.on_message("  ".join(evaluation_parts(row)))

    def on_checkpoint(self, run: RunContext, path: Path, kind: str) -> None:
        self.on_message(f"checkpoint {path} ({kind})")

    def on_message(self, text: str) -> None:
        self._console.print(text, markup=False)


class LivePanel(Callback):
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
        self._evaluation = ["no evaluation yet"]
        self._row: Row = {}
        self._return: float | None = None

    def on_run_start(self, run: RunContext) -> None:
        for line in (describe(run.config), *run.notes):
            self.on_message(line)
        self._title = Text(str(run.path), overflow="ellipsis")
        self._bar = self._progress.add_task("", total=run.config.total_steps, completed=run.step, left="?")
        # What a resumed run knew before; its first iterations may end no episode.
        rows = read_rows(run.path / "metrics.jsonl")
        self._return = next((row["return"] for row in reversed(rows) if row["return"] is not None), None)
        self._live.start()
        self._draw()

    def on_iteration(self, run: RunContext, row: Row) -> None:
        self._row = row
        self._return = self._return if row["return"] is None else row["return"]
        self._progress.update(self._bar, completed=row["step"], left=time_left(row, run.config))
        self._draw()

    def on_evaluation(self, run: RunContext, row: Row) -> None:
        self._evaluation = evaluation_parts(row)
        self._progress.update(self._bar, completed=row["step"])
        self._draw()

    def on_message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def on_run_end(self, run: RunContext, status: Status) -> None:
        self._live.stop()

    def _draw(self) -> None:
        shown = {
            "return": self._return,
            "steps/s": self._row.get("time/sps"),
            "kl": self._row.get("approx_kl", self._row.get("kl")),
            "entropy": self._row.get("entropy"),
            "clipped": self._row.get("clip_fraction"),
            "value loss": self._row.get("value_loss"),
        }
        # Columns wrap as a whole on a narrow terminal, where a row of a table would lose its last ones.
        numbers = Columns(
            [f"[dim]{name}[/] {'-' if value is None else f'{value:.4g}'}" for name, value in shown.items()],
            padding=(0, 3),
        )
        body = Group(self._progress, numbers, Columns([Text(part) for part in self._evaluation], padding=(0, 2)))
        self._live.update(Panel(body, title=self._title, title_align="left"))


def progress() -> Callback:
    """Return the callback that shows a run's progress: a live panel on a terminal, plain lines elsewhere."""
    console = Console()
    return LivePanel(console) if console.is_terminal else PlainLines()
