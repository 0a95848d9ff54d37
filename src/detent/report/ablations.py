"""The paper's ablations, if the runs include them: number of bins, width of the actor, the swapped loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detent.config.presets import head_reads
from detent.report.curves import Cell, Comparison, without
from detent.report.learning import curves_of_groups
from detent.report.runs import compact, describe
from detent.report.spec import Axis, Figure, Panel, Series
from detent.report.stats import mean

BINS, WIDTH = "head.bins", "actor.width"


def swept(comparisons: Sequence[Comparison], setting: str) -> list[Comparison]:
    """Return the comparisons in which groups differ in this setting and nothing else."""
    return [comparison for comparison in comparisons if _sweeps(comparison, setting)]


def _sweeps(comparison: Comparison, setting: str) -> dict[str, list[Cell]]:
    """Return the cells that differ in the setting alone, ordered by its value, by what they have in common.

    That is the group without the setting: a variant, or the variant with its head, if heads are swept too.
    """
    sweeps: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        if setting in cell.runs[0].settings:
            sweeps.setdefault(_common(cell, setting), []).append(cell)
    return {
        common: sorted(cells, key=lambda cell: _value(cell, setting))
        for common, cells in sweeps.items()
        if len({_value(cell, setting) for cell in cells}) > 1
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
        if not _is_default(cell, setting)
    }
    return without(comparisons, points)


def bins_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of final score against number of bins, a line per head; groups without a sweep are level."""
    here = swept(comparisons, BINS)
    if not here:
        return None
    caption = (
        "Mean over seeds with 95% bootstrap intervals. Level lines: groups that have no bins, or one number of them. "
        + _defaults(here, BINS)
    )
    return Figure("bins", "Number of bins", caption, tuple(_bins_panel(comparison, seed) for comparison in here))


def _bins_panel(comparison: Comparison, seed: int) -> Panel:
    sweeps = _sweeps(comparison, BINS)
    series = []
    for common, cells in sweeps.items():
        counted = [(cell, scores) for cell in cells if len(scores := comparison.final(cell))]
        estimates = [mean([scores], seed) for _, scores in counted]
        usual = [_value(cell, BINS) for cell in cells if _is_default(cell, BINS)]
        series.append(
            Series(
                common,
                f"{common} (default {usual[0]})" if usual else common,
                np.array([float(_value(cell, BINS)) for cell, _ in counted]),
                np.array([estimate.value for estimate in estimates]),
                np.array([estimate.low for estimate in estimates]),
                np.array([estimate.high for estimate in estimates]),
                np.array([float(estimate.runs) for estimate in estimates]),
            )
        )
    ends = np.array([min(line.x[0] for line in series), max(line.x[-1] for line in series)])
    variants = {cell.runs[0].variant for cells in sweeps.values() for cell in cells}
    levels = []
    for cell in comparison.cells:
        scores = comparison.final(cell)
        if cell.runs[0].variant not in variants and len(scores):
            settings = cell.runs[0].settings
            with_bins = "head.kind" in settings and head_reads(settings["head.kind"], BINS)
            label = f"{cell.group} ({settings[BINS]} bins)" if with_bins else cell.group
            runs = np.full(2, float(len(scores)))
            levels.append(Series(cell.group, label, ends, np.full(2, scores.mean()), runs=runs, style="level"))
    # In the legend as in the panel: the highest first.
    series += sorted(levels, key=lambda line: -line.y[0])
    title = f"{comparison.task}, {comparison.algo.upper()}, {compact(comparison.step)} steps"
    x, y = Axis("bins per action dimension", log=True), Axis(comparison.runs[0].measure)
    return Panel(title, x, y, tuple(series), legend="actor")


def width_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of learning curves by width of the actor."""
    here = swept(comparisons, WIDTH)
    if not here:
        return None
    points = {cell.group for c in here for cells in _sweeps(c, WIDTH).values() for cell in cells}
    caption = f"Learning curves by hidden width of the actor. {_defaults(here, WIDTH)}"
    figure = curves_of_groups("width", "Width of the actor", caption, here, points, seed)
    panels = tuple(_by_width(panel, comparison) for panel, comparison in zip(figure.panels, here, strict=True))
    return replace(figure, panels=panels)


def _by_width(panel: Panel, comparison: Comparison) -> Panel:
    """Name the lines after their width: the plain variant is another width on another task."""
    sweeps = _sweeps(comparison, WIDTH)
    names = {}
    for common, cells in sweeps.items():
        for cell in cells:
            value = _value(cell, WIDTH)
            label = f"{common} {value}" if len(sweeps) > 1 else str(value)
            key = f"{common} · {describe(WIDTH, value)}"
            names[cell.group] = key, f"{label} (default)" if _is_default(cell, WIDTH) else label
    series = []
    for line in panel.series:
        key, label = names[line.key]
        paper = f"the paper's {label.removesuffix(' (default)')}"
        series.append(replace(line, key=key, label=paper if line.style == "dashed" else label))
    order = list(dict.fromkeys(key for key, _ in names.values()))
    series.sort(key=lambda line: (line.style == "dashed", order.index(line.key)))
    return replace(panel, series=tuple(series), legend="width")


def _value(cell: Cell, setting: str) -> int:
    return int(cell.runs[0].settings[setting])


def _common(cell: Cell, setting: str) -> str:
    """Return the cell's group without the setting."""
    own = describe(setting, cell.runs[0].settings[setting])
    return " · ".join(word for word in cell.group.split(" · ") if word != own)


def _is_default(cell: Cell, setting: str) -> bool:
    return cell.group == _common(cell, setting)


def _defaults(comparisons: Sequence[Comparison], setting: str) -> str:
    """Say which value of a swept setting is the default of which group on which task."""
    tasks: dict[str, list[str]] = {}
    for comparison in comparisons:
        usual: dict[str, list[str]] = {}
        for common, cells in _sweeps(comparison, setting).items():
            values = [str(_value(cell, setting)) for cell in cells if _is_default(cell, setting)]
            usual.setdefault(values[0] if values else "not among the runs", []).append(common)
        for value, groups in usual.items():
            tasks.setdefault(f"{value} ({', '.join(groups)})", []).append(comparison.task)
    parts = [f"{text} on {', '.join(dict.fromkeys(names))}" for text, names in tasks.items()]
    return f"Default: {'; '.join(parts)}."


def loss_swap_figure(comparisons: Sequence[Comparison], seed: int) -> Figure | None:
    """Make the figure of RN-D, RN-D with a Gaussian likelihood, and RN-C."""
    here = [c for c in comparisons if any(cell.group == "loss-swap" for cell in c.cells)]
    if not here:
        return None
    caption = (
        "Bins with the categorical likelihood, the same bins with a Gaussian around the expected action, and RN-C."
    )
    return curves_of_groups("loss-swap", "Loss swap", caption, here, {"rn-d", "loss-swap", "rn-c"}, seed)
