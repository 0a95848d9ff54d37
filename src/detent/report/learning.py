"""Learning curves: aggregates over tasks, every task, and against wall-clock time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from detent.paper.scores import paper_score
from detent.report.curves import (
    Aggregate,
    Comparison,
    band,
    common_points,
    hours_and_scores,
    steps_and_scores,
)
from detent.report.runs import Array, Run
from detent.report.spec import Arrow, Axis, Figure, Panel, Series
from detent.report.stats import Band, mean_curve, speedup

_PAPER_MEANS = {
    "gym": ("gym-locomotion (mean of 5)", 5),
    "maniskill": ("maniskill-state (mean of 10)", 10),
    "maniskill rgb": ("maniskill-rgb (mean of 5)", 5),
}
"""The paper's own averages by family, with the number of tasks in each."""

STEPS = Axis("environment steps", "steps")
_BAND = "Bands are 95% stratified bootstrap intervals over seeds; a group with one seed has none."
_PAPER = "Dashed: the paper's curves, read off its figures (mean of 5 seeds)."


def aggregate_figure(aggregates: Sequence[Aggregate], hidden: Collection[str], seed: int) -> Figure | None:
    """Make the paper's main figure: mean over tasks per benchmark and algorithm, and the first group's speed-up."""
    panels = []
    for aggregate in aggregates:
        points = aggregate.points()
        groups = [group for group in aggregate.groups if group not in hidden]
        series = [_series(group, points, mean_curve(aggregate.curves(group, points), seed)) for group in groups]
        series += _paper_series(groups, points, partial(paper_mean, aggregate))
        measure = aggregate.comparisons[0].runs[0].measure
        title = f"{aggregate.family}, mean of {len(aggregate.tasks)} tasks, {aggregate.algo.upper()}"
        panels.append(Panel(title, STEPS, Axis(measure), tuple(series), _arrow(aggregate, groups, seed)))
    if not panels:
        return None
    first = aggregates[0].groups[0]
    caption = (
        f"Mean over tasks of the mean over seeds. {_BAND} {_PAPER} The arrow: how many times fewer steps {first} needs "
        "to reach the final score of the best other group of the same algorithm."
    )
    return Figure("aggregate", "All tasks together", caption, tuple(panels))


def tasks_figure(comparisons: Sequence[Comparison], hidden: Collection[str], seed: int) -> Figure | None:
    """Make the figure of every task: mean over seeds against environment steps."""
    panels = [_task_panel(comparison, hidden, seed, steps_and_scores, STEPS, True) for comparison in comparisons]
    if not panels:
        return None
    caption = f"Mean over seeds of the evaluations by sampled actions. {_BAND} {_PAPER}"
    return Figure("tasks", "Every task", caption, tuple(panels))


def wall_clock_figure(comparisons: Sequence[Comparison], hidden: Collection[str], seed: int) -> Figure | None:
    """Make the figure of every task: mean over seeds against hours of training."""
    hours = Axis("hours of training")
    panels = [_task_panel(comparison, hidden, seed, hours_and_scores, hours, False) for comparison in comparisons]
    panels = [panel for panel in panels if panel.series]
    if not panels:
        return None
    caption = (
        f"The same evaluations against the time spent in training up to them; evaluating is not counted. {_BAND} "
        "Times of runs on different machines, or on a machine that did other work, cannot be compared."
    )
    return Figure("wall-clock", "Against wall-clock time", caption, tuple(panels))


def curves_of_groups(
    name: str, title: str, caption: str, comparisons: Sequence[Comparison], groups: Collection[str], seed: int
) -> Figure:
    """Make a figure of the learning curves of `groups` only."""
    panels = []
    for comparison in comparisons:
        others = {cell.group for cell in comparison.cells} - set(groups)
        panels.append(_task_panel(comparison, others, seed, steps_and_scores, STEPS, True))
    return Figure(name, title, f"{caption} {_BAND}", tuple(panels))


def _task_panel(
    comparison: Comparison,
    hidden: Collection[str],
    seed: int,
    curve: Callable[[Run], tuple[Array, Array]],
    axis: Axis,
    with_paper: bool,
) -> Panel:
    shown = [cell for cell in comparison.cells if cell.group not in hidden]
    series = []
    for cell in shown:
        lines = [line for line in map(curve, cell.runs) if len(line[0])]
        if lines:
            points = common_points([x for x, _ in lines])
            if axis is not STEPS:
                # Seeds take different times; past the end of the fastest, the mean would jump.
                points = points[points <= min(x[-1] for x, _ in lines)]
            series.append(_series(cell.group, points, band(points, lines, seed)))
    if with_paper and shown:
        ends = common_points([run.at for cell in shown for run in cell.runs])
        series += _paper_series([cell.group for cell in shown], ends, partial(paper_of, comparison))
    title = f"{comparison.task}, {comparison.algo.upper()}"
    return Panel(title, axis, Axis(comparison.runs[0].measure), tuple(series))


def _series(group: str, points: Array, curve: Band) -> Series:
    known = np.isfinite(curve.value)
    return Series(
        group,
        group,
        points[known],
        curve.value[known],
        curve.low[known],
        curve.high[known],
        curve.runs[known].astype(float),
    )


def _paper_series(groups: Sequence[str], points: Array, score: Callable[[str, int], float | None]) -> list[Series]:
    """Return the paper's curves of these groups, as far as ours go."""
    out = []
    for group in groups:
        steps = np.unique(np.linspace(0, points[-1], 51).round())
        known = [(step, value) for step in steps if (value := score(group, int(step))) is not None]
        if known:
            x, y = (np.array(column, float) for column in zip(*known, strict=True))
            out.append(Series(group, f"{group}, the paper", x, y, style="dashed"))
    return out


def paper_of(comparison: Comparison, group: str, step: int) -> float | None:
    """Return the paper's score of a group on a task; None for groups the paper does not have."""
    return paper_score(comparison.algo, comparison.task, group, step)


def paper_mean(aggregate: Aggregate, group: str, step: int) -> float | None:
    """Return the paper's mean over the same tasks: its own average if all are here, else the mean of its curves."""
    name, count = _PAPER_MEANS.get(aggregate.family, ("", 0))
    average = paper_score(aggregate.algo, name, group, step) if count == len(aggregate.tasks) else None
    if average is not None:
        return average
    scores = [paper_score(aggregate.algo, task, group, step) for task in aggregate.tasks]
    known = [score for score in scores if score is not None]
    return float(np.mean(known)) if len(known) == len(scores) else None


def _arrow(aggregate: Aggregate, groups: Sequence[str], seed: int) -> Arrow | None:
    # Other algorithms are compared by wall-clock time, not by steps.
    ours = [group for group in groups if all(cell.runs[0].on_policy for cell in aggregate.cells(group))]
    points, curves = aggregate.shared_range(ours)
    if len(points) < 2 or len(curves) < 2 or next(iter(curves)) != groups[0]:
        return None
    first, *others = curves
    best = max(others, key=lambda group: float(np.mean([task[:, -1].mean() for task in curves[group]])))
    gain = speedup(points, curves[first], curves[best], seed)
    if gain.value < 1.05:
        return None
    score = float(np.mean([task[:, -1].mean() for task in curves[best]]))
    return Arrow(points[-1] / gain.value, points[-1], score, f"{gain.value:.1f} times sooner", (first, best))
