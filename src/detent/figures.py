"""Learning curves of runs, beside the paper's, and the course of any metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from detent.config import Config
from detent.paper import normalized, paper_score
from detent.presets import is_maniskill
from detent.runlog import read_rows, read_run_config

COLORS = {"rn-d": "#c44e52", "rn-c": "#dd8452", "mlp-d": "#4c72b0", "mlp-c": "#55a868"}
OTHER_COLOR = "#8172b3"


Runs = dict[Path, Config]


def draw_learning_curves(runs: Sequence[Path], path: Path) -> None:
    """One panel per task and algorithm: evaluation score (or return) against steps, the paper's dashed if it has one.

    The band around a curve is one standard deviation over the episodes of an evaluation.
    """

    def draw_panel(axes: Axes, task: str, algo: str, here: Runs) -> None:
        last = max(_draw_run(axes, run, config) for run, config in here.items())
        for variant in sorted({config.variant for config in here.values()}):
            _draw_paper(axes, algo, task, variant, last)
        axes.set_ylabel(_measure(task))

    _draw_panels(runs, path, draw_panel)


def draw_metric(runs: Sequence[Path], metric: str, path: Path) -> None:
    """One panel per task and algorithm: a column of `metrics.jsonl` against steps, on a logarithmic scale."""

    def draw_panel(axes: Axes, task: str, algo: str, here: Runs) -> None:
        for run, config in here.items():
            rows = [row for row in read_rows(run / "metrics.jsonl") if row.get(metric) is not None]
            points = [row["step"] for row in rows], [row[metric] for row in rows]
            axes.plot(*points, _style(config), color=_color(config.variant), label=_label(config))
        axes.set_yscale("log")
        axes.set_ylabel(metric)

    _draw_panels(runs, path, draw_panel)


def _draw_panels(runs: Sequence[Path], path: Path, draw_panel: Callable[[Axes, str, str, Runs], None]) -> None:
    configs = {run: read_run_config(run) for run in runs}
    panels = sorted({(config.task, config.algo) for config in configs.values()})
    figure = Figure(figsize=(5.2 * len(panels), 3.8), layout="constrained")
    for axes, (task, algo) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(axes, task, algo, {r: c for r, c in configs.items() if (c.task, c.algo) == (task, algo)})
        axes.set_title(f"{task}, {algo.upper()}")
        axes.set_xlabel("environment steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _measure(task: str) -> str:
    """What a task is scored by: success rate on ManiSkill, elsewhere the return."""
    if is_maniskill(task):
        return "success rate"
    return "return" if normalized(task, 0.0) is None else "TD3-normalized return"


def _color(variant: str) -> str:
    return COLORS.get(variant, OTHER_COLOR)


def _style(config: Config) -> str:
    return {"paper": "-", "authors": ":"}.get(config.preset, "-.")


def _label(config: Config) -> str:
    return f"{config.variant}, {config.preset}, seed {config.seed}"


def _draw_run(axes: Axes, run: Path, config: Config) -> int:
    """One run's curve; the step where it ends."""
    rows = read_rows(run / "evals.jsonl")
    steps = [row["step"] for row in rows]
    color = _color(config.variant)
    if is_maniskill(config.task):
        rates = [row["stochastic"]["success_once"] for row in rows]
        axes.plot(steps, rates, _style(config), color=color, label=_label(config))
        return max(steps, default=0)
    means = [row["stochastic"]["return"] for row in rows]
    spreads = [row["stochastic"]["std"] for row in rows]

    def score(value: float) -> float:
        scaled = normalized(config.task, value)
        return value if scaled is None else scaled

    axes.plot(steps, [score(mean) for mean in means], _style(config), color=color, label=_label(config))
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
        axes.plot(*zip(*known, strict=True), "--", color=_color(variant), alpha=0.7, linewidth=1, label=label)
