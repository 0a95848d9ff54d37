"""Scores with intervals, probability of improvement and speed-up: tables, and the figures that go with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from detent.report.curves import Aggregate, Comparison, alone
from detent.report.learning import one_seed, paper_mean, paper_of, plain_groups
from detent.report.runs import compact
from detent.report.spec import Axis, Figure, Panel, Series
from detent.report.stats import (
    Estimate,
    iqm,
    last_mean,
    mean,
    percentile_over_training,
    performance_profile,
    probability_of_improvement,
    speedup,
)
from detent.report.table import Table

_WITH_INTERVAL = ("mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high")
_SCORE_COLUMNS = (
    "task",
    "algo",
    "group",
    *_WITH_INTERVAL,
    "p95",
    "paper",
    "seeds",
    "seeds_declared",
    "step",
    "measure",
)
_AGGREGATE_COLUMNS = ("family", "algo", "group", *_WITH_INTERVAL, "paper", "tasks", "runs", "step")


def scores_table(comparisons: Sequence[Comparison], declared: dict[tuple[str, str, str], int], seed: int) -> Table:
    """Make the table of scores at the step of comparison, with their seeds, by task, algorithm and group.

    `declared` counts the seeds that a complete table would have.
    """
    rows = []
    for comparison in comparisons:
        for cell in comparison.cells:
            scores, counted = comparison.final(cell), comparison.counted(cell)
            row: dict[str, Any] = {"task": cell.task, "algo": cell.algo, "group": cell.group, "seeds": len(scores)}
            row["seeds_declared"] = declared.get((cell.task, cell.runs[0].algo, cell.group), len(cell.runs))
            row["step"] = min([comparison.step, *(run.last for run in counted)])
            row["measure"] = cell.runs[0].measure
            if len(scores):
                row |= _columns("mean", mean([scores], seed)) | _columns("iqm", iqm([scores], seed))
                row["p95"] = float(np.mean([percentile_over_training(run.scores) for run in counted]))
            row["paper"] = paper_of(comparison, cell.group, row["step"])
            rows.append(row)
    return Table.from_rows(rows, _SCORE_COLUMNS)


def aggregate_table(aggregates: Sequence[Aggregate], seed: int) -> Table:
    """Make the table of scores over the tasks of a family."""
    rows = []
    for aggregate in aggregates:
        step = min(comparison.step for comparison in aggregate.comparisons)
        for group in aggregate.groups:
            scores = aggregate.finals(group)
            row: dict[str, Any] = {"family": aggregate.family, "algo": aggregate.algo, "group": group}
            row |= {"tasks": len(scores), "runs": sum(map(len, scores)), "step": step}
            row |= _columns("mean", mean(scores, seed)) | _columns("iqm", iqm(scores, seed))
            rows.append(row | {"paper": paper_mean(aggregate, group, step)})
    return Table.from_rows(rows, _AGGREGATE_COLUMNS)


def improvement_table(aggregates: Sequence[Aggregate], comparisons: Sequence[Comparison], seed: int) -> Table:
    """Make the table of how likely a run of group `a` scores higher than one of group `b`, by task and over tasks."""
    rows = []
    for scope in _scopes(aggregates, comparisons):
        for number, a in enumerate(scope.groups):
            for b in scope.groups[number + 1 :]:
                chance = probability_of_improvement(scope.finals(a), scope.finals(b), seed)
                rows.append(_pair(scope, a, b) | _columns("probability", chance) | {"runs": chance.runs})
    return Table.from_rows(rows, ("scope", "algo", "a", "b"))


def speedup_table(aggregates: Sequence[Aggregate], comparisons: Sequence[Comparison], seed: int) -> Table:
    """Make the table of how many times fewer steps one group needs to reach another's final score.

    The first group is compared with every other one. `a` is whichever of the two ends higher: a curve that is ahead
    for a while and ends lower is not faster.
    """
    rows = []
    for scope in _scopes(aggregates, comparisons):
        points, curves = scope.shared_range(scope.groups)
        if len(points) < 2 or len(curves) < 2:
            continue
        first, *others = curves
        for other in others:
            a, b = sorted((first, other), key=lambda group: -last_mean(curves[group]))
            gain = speedup(points, curves[a], curves[b], seed)
            row = _pair(scope, a, b) | {"target": last_mean(curves[b]), "step": int(points[-1])}
            row |= {"reached_at": points[-1] / gain.value} | _columns("speedup", gain)
            rows.append(row | {"runs": gain.runs, "note": one_seed(curves[a], curves[b])})
    return Table.from_rows(rows, ("scope", "algo", "a", "b"))


def scores_figure(aggregates: Sequence[Aggregate], comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of the groups' scores at the step of comparison, as bars: over tasks, then task by task."""
    panels = []
    for scope in _scopes(aggregates, comparisons):
        if len(scope.groups) < 2:
            continue
        bars = []
        for number, group in enumerate(scope.groups):
            score = mean(scope.finals(group), seed)
            x, y, low, high, runs = (
                np.array([float(value)]) for value in (number, score.value, score.low, score.high, score.runs)
            )
            bars.append(Series(group, group, x, y, low, high, runs))
        step = compact(min(comparison.step for comparison in scope.comparisons))
        title = f"{_name(scope)}, {scope.algo.upper()}, {step} steps"
        panels.append(Panel(title, Axis(""), Axis(scope.comparisons[0].runs[0].measure), tuple(bars)))
    if not panels:
        return None
    caption = (
        "Mean over seeds at the step where the first complete run ends; over tasks, the mean of their means. Whiskers: "
        f"95% stratified bootstrap intervals; a group with one seed has none. {plain_groups(comparisons)}"
    )
    return Figure("scores", "Scores", caption.strip(), tuple(panels), "bars")


def profile_figure(aggregates: Sequence[Aggregate], seed: int) -> Figure | None:
    """Make the figure of the share of runs above each score."""
    panels = []
    for aggregate in aggregates:
        pooled = np.concatenate([task for group in aggregate.groups for task in aggregate.finals(group)])
        thresholds = np.linspace(min(0.0, pooled.min()), max(1.0, pooled.max()), 101)
        series = []
        for group in aggregate.groups:
            curve = performance_profile(aggregate.finals(group), thresholds, seed)
            runs = curve.runs.astype(float)
            series.append(Series(group, group, thresholds, curve.value, curve.low, curve.high, runs))
        title = f"{aggregate.family}, {len(aggregate.tasks)} tasks, {aggregate.algo.upper()}"
        measure = aggregate.comparisons[0].runs[0].measure
        panels.append(
            Panel(title, Axis(f"score τ ({measure})"), Axis("runs with a score above τ", "share"), tuple(series))
        )
    if not panels:
        return None
    caption = (
        "For every score τ the share of runs that end above it, mean over tasks; a higher curve is better. Bands are "
        "95% stratified bootstrap intervals."
    )
    return Figure("profiles", "Performance profiles", caption, tuple(panels))


def improvement_figure(improvements: Table) -> Figure | None:
    """Make the figure of the first group's probability of improvement over each other group."""
    panels = []
    for scope, algo in dict.fromkeys(zip(improvements["scope"], improvements["algo"], strict=True)):
        table = improvements.where(scope=scope, algo=algo)
        rows = [row for row in table.rows() if row["a"] == table["a"][0]]
        series = tuple(
            Series(
                row["b"],
                f"{row['a']} > {row['b']}",
                np.array([row["probability"]]),
                np.array([float(number)]),
                np.array([_nan(row["probability_low"])]),
                np.array([_nan(row["probability_high"])]),
                np.array([float(row["runs"])]),
            )
            for number, row in enumerate(rows)
        )
        if series:
            panels.append(Panel(f"{scope}, {algo.upper()}", Axis("probability", "share"), Axis(""), series))
    if not panels:
        return None
    caption = (
        "How likely a run of the first group ends higher than a run of the other on the same task (ties count half), "
        "mean over tasks; 0.5 is no difference. Whiskers: 95% stratified bootstrap intervals."
    )
    return Figure("improvement", "Probability of improvement", caption, tuple(panels), "intervals")


def _scopes(aggregates: Iterable[Aggregate], comparisons: Iterable[Comparison]) -> list[Aggregate]:
    return [*aggregates, *map(alone, comparisons)]


def _pair(scope: Aggregate, a: str, b: str) -> dict[str, Any]:
    return {"scope": _name(scope), "algo": scope.algo, "a": a, "b": b}


def _name(scope: Aggregate) -> str:
    return scope.family if len(scope.tasks) == 1 else f"{scope.family} ({len(scope.tasks)} tasks)"


def _columns(name: str, estimate: Estimate) -> dict[str, float | None]:
    known = np.isfinite(estimate.low)
    low, high = (estimate.low, estimate.high) if known else (None, None)
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def _nan(value: float | None) -> float:
    return np.nan if value is None else value
