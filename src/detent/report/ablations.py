"""The paper's ablations, if the runs include them: number of bins, width of the actor, the swapped loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detent.report.curves import Cell, Comparison, without
from detent.report.learning import curves_of_groups
from detent.report.runs import describe
from detent.report.spec import Axis, Figure, Panel, Series
from detent.report.stats import mean

BINS, WIDTH = "head.bins", "actor.width"


def swept(comparisons: Sequence[Comparison], setting: str) -> list[Comparison]:
    """Return the comparisons in which runs of one variant differ in this setting and nothing else."""
    return [comparison for comparison in comparisons if _sweeps(comparison, setting)]


def _sweeps(comparison: Comparison, setting: str) -> dict[str, list[Cell]]:
    """Return the cells of each variant that has at least two values of the setting, ordered by value."""
    sweeps: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        run = cell.runs[0]
        value = run.settings.get(setting)
        if value is not None and cell.group in (run.variant, f"{run.variant} · {describe(setting, value)}"):
            sweeps.setdefault(run.variant, []).append(cell)
    return {
        variant: sorted(cells, key=lambda cell: float(cell.runs[0].settings[setting]))
        for variant, cells in sweeps.items()
        if len({cell.runs[0].settings[setting] for cell in cells}) > 1
    }


def without_sweeps(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Leave out groups that exist only as a point of a sweep.

    They have figures of their own, would crowd the others, and must not decide which tasks an aggregate is over.
    """
    points = {
        cell.group
        for comparison in comparisons
        for setting in (BINS, WIDTH)
        for cells in _sweeps(comparison, setting).values()
        for cell in cells
        if cell.group != cell.runs[0].variant
    }
    return without(comparisons, points)


def bins_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of final score against number of bins; variants without a sweep are level lines."""
    panels = []
    for comparison in swept(comparisons, BINS):
        sweeps = _sweeps(comparison, BINS)
        series = []
        for variant, cells in sweeps.items():
            counted = [(cell, scores) for cell in cells if len(scores := comparison.final(cell))]
            estimates = [mean([scores], seed) for _, scores in counted]
            series.append(
                Series(
                    variant,
                    variant,
                    np.array([float(cell.runs[0].settings[BINS]) for cell, _ in counted]),
                    np.array([estimate.value for estimate in estimates]),
                    np.array([estimate.low for estimate in estimates]),
                    np.array([estimate.high for estimate in estimates]),
                    np.array([float(estimate.runs) for estimate in estimates]),
                )
            )
        ends = np.array([min(line.x[0] for line in series), max(line.x[-1] for line in series)])
        for cell in comparison.cells:
            scores = comparison.final(cell)
            if cell.runs[0].variant not in sweeps and len(scores):
                level = np.full(2, scores.mean())
                runs = np.full(2, float(len(scores)))
                series.append(Series(cell.group, cell.group, ends, level, runs=runs, style="level"))
        label = f"{comparison.runs[0].measure} at {comparison.step:,} steps"
        title = f"{comparison.task}, {comparison.algo.upper()}"
        panels.append(Panel(title, Axis("bins per action dimension", log=True), Axis(label), tuple(series)))
    if not panels:
        return None
    caption = (
        "Mean over seeds with 95% bootstrap intervals. Level lines: groups that have no bins, or one number of them."
    )
    return Figure("bins", "Number of bins", caption, tuple(panels))


def width_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of learning curves by width of the actor."""
    here = swept(comparisons, WIDTH)
    if not here:
        return None
    cells = [cell for comparison in here for sweep in _sweeps(comparison, WIDTH).values() for cell in sweep]
    usual = sorted({cell.runs[0].settings[WIDTH] for cell in cells if cell.group == cell.runs[0].variant})
    plain = f" Without a number: {', '.join(map(str, usual))}." if usual else ""
    groups = {cell.group for cell in cells}
    return curves_of_groups("width", "Width of the actor", f"Hidden width of the actor.{plain}", here, groups, seed)


def loss_swap_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of RN-D, RN-D with a Gaussian likelihood, and RN-C."""
    here = [c for c in comparisons if any(cell.group == "loss-swap" for cell in c.cells)]
    if not here:
        return None
    caption = (
        "Bins with the categorical likelihood, the same bins with a Gaussian around the expected action, and RN-C."
    )
    return curves_of_groups("loss-swap", "Loss swap", caption, here, {"rn-d", "loss-swap", "rn-c"}, seed)
