"""Learning curves of runs, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from detent.config import Config
from detent.paper import normalized, paper_score
from detent.runlog import read_rows, read_run_config

COLORS = {"rn-d": "#c44e52", "rn-c": "#dd8452", "mlp-d": "#4c72b0", "mlp-c": "#55a868"}
OTHER_COLOR = "#8172b3"


def draw_learning_curves(runs: Sequence[Path], path: Path) -> None:
    """One panel per task: evaluation score (or return) against steps, a dashed line for the paper where it has one.

    The band around a curve is one standard deviation over the episodes of an evaluation.
    """
    configs = {run: read_run_config(run) for run in runs}
    tasks = sorted({config.task for config in configs.values()})
    figure = Figure(figsize=(5.2 * len(tasks), 3.8), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        here = {run: config for run, config in configs.items() if config.task == task}
        last = max(_draw_run(axes, run, config) for run, config in here.items())
        for algo, variant in sorted({(config.algo, config.variant) for config in here.values()}):
            _draw_paper(axes, algo, task, variant, last)
        axes.set_title(task)
        axes.set_xlabel("environment steps")
        axes.set_ylabel("return" if normalized(task, 0.0) is None else "TD3-normalized return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_run(axes: Axes, run: Path, config: Config) -> int:
    """One run's curve; the step where it ends."""
    rows = read_rows(run / "evals.jsonl")
    steps = [row["step"] for row in rows]
    means = [row["stochastic"]["return"] for row in rows]
    spreads = [row["stochastic"]["std"] for row in rows]

    def score(value: float) -> float:
        scaled = normalized(config.task, value)
        return value if scaled is None else scaled

    color = COLORS.get(config.variant, OTHER_COLOR)
    style = "-" if config.preset == "paper" else ":" if config.preset == "authors" else "-."
    label = f"{config.variant}, {config.preset}, seed {config.seed}"
    axes.plot(steps, [score(mean) for mean in means], style, color=color, label=label)
    axes.fill_between(
        steps,
        [score(mean - spread) for mean, spread in zip(means, spreads, strict=True)],
        [score(mean + spread) for mean, spread in zip(means, spreads, strict=True)],
        color=color,
        alpha=0.15,
        linewidth=0,
    )
    return max(steps, default=0)


def _draw_paper(axes: Axes, algo: str, task: str, variant: str, last: int) -> None:
    """The paper's curve, as far as the runs in the panel go."""
    paper = [(step, paper_score(algo, task, variant, step)) for step in range(0, last + 1, max(1, last // 50))]
    known = [(step, value) for step, value in paper if value is not None]
    if known:
        label = f"{variant}, the paper (mean of 5 seeds)"
        color = COLORS.get(variant, OTHER_COLOR)
        axes.plot(*zip(*known, strict=True), "--", color=color, alpha=0.7, linewidth=1, label=label)
