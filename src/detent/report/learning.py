"""Learning curves: aggregates over tasks, every task, and against wall-clock time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from detent.paper.scores import paper_score
from detent.report.curves import (
    Aggregate,
    Comparison,
    aggregates_of,
    algorithm_order,
    band,
    common_points,
    hours_and_scores,
    steps_and_scores,
    without,
)
from detent.report.runs import Array, Run, describe
from detent.report.spec import Arrow, Axis, Figure, Panel, Series
from detent.report.stats import Band, ByTask, last_mean, mean_curve, speedup

_PAPER_MEANS = {
    "gym": ("gym-locomotion (mean of 5)", 5),
    "maniskill": ("maniskill-state (mean of 10)", 10),
    "maniskill rgb": ("maniskill-rgb (mean of 5)", 5),
}
"""The paper's own averages by family, with the number of tasks in each."""

INTRO = ("rn-d", "mlp-c")
"""The two actors of the paper's first figure."""
STEPS = Axis("environment steps", "steps")
_BAND = "Bands are 95% stratified bootstrap intervals over seeds; a group with one seed has none."
_ARROW = (
    "The arrow: how many times fewer steps the group that ends highest needs to reach the final score of the one that "
    "ends second."
)
_PAPER = "Dashed: the paper's curves, read off its figures (mean of 5 seeds)."


def intro_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the paper's first figure: RN-D and MLP-C, a row per benchmark and a column per algorithm."""
    others = {cell.group for comparison in comparisons for cell in comparison.cells} - set(INTRO)
    found = [one for one in aggregates_of(without(comparisons, others)) if set(one.groups) == set(INTRO)]
    if not found:
        return None
    found.sort(key=lambda one: (one.family, algorithm_order(one.algo)))
    panels = tuple(_aggregate_panel(aggregate, seed) for aggregate in found)
    caption = (
        "RN-D and the standard actor, a Gaussian on an MLP (MLP-C), by benchmark and algorithm: mean over tasks of the "
        f"mean over seeds. {_BAND} {_PAPER} {_ARROW}"
    )
    columns = len({aggregate.algo for aggregate in found})
    return Figure("intro", "RN-D against MLP-C", caption, panels, columns=columns)


def aggregate_figures(aggregates: Sequence[Aggregate], seed: int) -> list[Figure]:
    """Make the paper's main figure for each algorithm: mean over tasks, a panel per benchmark, and the speed-up."""
    figures = []
    for algo in dict.fromkeys(aggregate.algo for aggregate in aggregates):
        panels = tuple(_aggregate_panel(aggregate, seed) for aggregate in aggregates if aggregate.algo == algo)
        caption = f"Mean over tasks of the mean over seeds under {algo.upper()}. {_BAND} {_PAPER} {_ARROW}"
        figures.append(Figure(f"aggregate-{algo}", f"All tasks together, {algo.upper()}", caption, panels))
    return figures


def _aggregate_panel(aggregate: Aggregate, seed: int) -> Panel:
    points = aggregate.points()
    series = [_series(group, points, mean_curve(aggregate.curves(group, points), seed)) for group in aggregate.groups]
    series += _paper_series(aggregate.groups, points, partial(paper_mean, aggregate))
    measure = aggregate.comparisons[0].runs[0].measure
    title = f"{aggregate.family}, mean of {len(aggregate.tasks)} tasks, {aggregate.algo.upper()}"
    return Panel(title, STEPS, Axis(measure), tuple(series), _arrow(aggregate, seed))


def tasks_figures(comparisons: Sequence[Comparison], seed: int) -> list[Figure]:
    """Make the paper's complete curves: one figure per algorithm with a panel per task."""
    figures = []
    for algo in sorted({comparison.algo for comparison in comparisons}, key=algorithm_order):
        shown = [comparison for comparison in comparisons if comparison.algo == algo]
        panels = tuple(_task_panel(comparison, seed, steps_and_scores, STEPS, True) for comparison in shown)
        caption = f"Evaluations by sampled actions under {algo.upper()}, mean over seeds. {_BAND} {_PAPER}"
        caption = f"{caption} {plain_groups(shown)}".strip()
        figures.append(Figure(f"tasks-{algo}", f"Every task, {algo.upper()}", caption, panels))
    return figures


def wall_clock_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of every task: mean over seeds against hours of training."""
    hours = Axis("hours of training")
    panels = [_task_panel(comparison, seed, hours_and_scores, hours, False) for comparison in comparisons]
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
    others = {cell.group for comparison in comparisons for cell in comparison.cells} - set(groups)
    shown = without(comparisons, others)
    panels = tuple(_task_panel(comparison, seed, steps_and_scores, STEPS, True) for comparison in shown)
    return Figure(name, title, f"{caption} {_BAND}", panels)


def _task_panel(
    comparison: Comparison,
    seed: int,
    curve: Callable[[Run], tuple[Array, Array]],
    axis: Axis,
    with_paper: bool,
) -> Panel:
    series = []
    for cell in comparison.cells:
        lines = [line for line in map(curve, cell.runs) if len(line[0])]
        if lines:
            points = common_points([x for x, _ in lines])
            if axis is not STEPS:
                # Seeds take different times; past the end of the fastest, the mean would jump.
                points = points[points <= min(x[-1] for x, _ in lines)]
            series.append(_series(cell.group, points, band(points, lines, seed)))
    if with_paper:
        ends = common_points([run.at for run in comparison.runs])
        series += _paper_series([cell.group for cell in comparison.cells], ends, partial(paper_of, comparison))
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
    """Return the paper's curves of these groups, as far as ours go, where two points or more of them are known."""
    out = []
    for group in groups:
        steps = np.unique(np.linspace(0, points[-1], 51).round())
        known = [(step, value) for step in steps if (value := score(group, int(step))) is not None]
        if len(known) > 1:
            x, y = (np.array(column, float) for column in zip(*known, strict=True))
            out.append(Series(group, f"{group}, the paper", x, y, style="dashed"))
    return out


def plain_groups(comparisons: Sequence[Comparison]) -> str:
    """Say what groups named by a variant alone have, where others of the variant are named after a setting."""
    cells = [cell for comparison in comparisons for cell in comparison.cells]
    named: dict[tuple[str, str], dict[str, None]] = {}
    for cell in cells:
        run, words = cell.runs[0], cell.group.split(" · ")
        for key, value in run.overrides.items():
            if describe(key, value) in words:
                named.setdefault((run.algo, run.variant), {})[key] = None
    found: dict[str, None] = {}
    for cell in cells:
        run = cell.runs[0]
        usual = [
            describe(key, run.settings[key]) for key in named.get((run.algo, cell.group), {}) if key in run.settings
        ]
        if usual:
            found[f"{cell.group}: {', '.join(usual)}"] = None
    return f"Without further words, {'; '.join(found)}." if found else ""


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


def _arrow(aggregate: Aggregate, seed: int) -> Arrow | None:
    # Other algorithms are compared by wall-clock time, not by steps.
    ours = [group for group in aggregate.groups if all(cell.runs[0].on_policy for cell in aggregate.cells(group))]
    points, curves = aggregate.shared_range(ours)
    if len(points) < 2 or len(curves) < 2:
        return None
    first, second, *_ = sorted(curves, key=lambda group: -last_mean(curves[group]))
    gain = speedup(points, curves[first], curves[second], seed)
    if gain.value < 1.05:
        return None
    seeds = one_seed(curves[first], curves[second])
    text = f"{first} {gain.value:.1f} times sooner than {second}" + (f" ({seeds})" if seeds else "")
    return Arrow(points[-1] / gain.value, points[-1], last_mean(curves[second]), text, (first, second))


def one_seed(*groups: ByTask) -> str:
    """Return the remark that a comparison of these groups rests on a single seed of some task; empty if it does not."""
    return "one seed" if min(len(runs) for group in groups for runs in group) < 2 else ""
