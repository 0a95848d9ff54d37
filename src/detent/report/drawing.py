"""Draw figures as PNG and SVG with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter, PercentFormatter, ScalarFormatter

from detent.report.spec import Figure, Panel, Series
from detent.report.style import colors

ARROW_COLOR = "#c53030"
MOST_COLUMNS = 4

Colors = Mapping[str, tuple[str, str]]


def draw(figure: Figure, *paths: Path, palette: Colors | None = None) -> None:
    """Draw a figure to files, their format given by the extension. The same figure gives the same bytes."""
    canvas = _canvas(figure, palette or colors(figure.keys))
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with matplotlib.rc_context({"svg.hashsalt": figure.name}):
            canvas.savefig(path, metadata=metadata)


def _canvas(figure: Figure, palette: Colors) -> Canvas:
    columns = min(len(figure.panels), MOST_COLUMNS)
    rows = ceil(len(figure.panels) / columns)
    width = max(4.4 * columns, 6.0)
    canvas = Canvas(figsize=(width, 3.4 * rows + 0.5), dpi=150, layout="constrained")
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, figure.panels, strict=False):
        {"curves": _curves, "bars": _bars, "intervals": _intervals}[figure.kind](axes, panel, palette)
        axes.set_title(panel.title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(figure.panels) :]:
        axes.set_axis_off()
    if figure.kind == "curves":
        _legend(canvas, figure, palette, width)
    # Once for all files: computing the layout takes as long as drawing.
    layout = canvas.get_layout_engine()
    if layout is not None:
        layout.execute(canvas)
    canvas.set_layout_engine("none")
    return canvas


def _curves(axes: Axes, panel: Panel, palette: Colors) -> None:
    for series in panel.series:
        color = palette[series.key][0]
        few = len(series.x) == 1 or (len(series.x) < 12 and series.style == "solid")
        style = {"solid": "-", "dashed": "--", "level": ":"}[series.style]
        thin = series.style == "dashed"
        axes.plot(
            series.x,
            series.y,
            style,
            color=color,
            label=series.label,
            linewidth=1.1 if thin else 1.7,
            alpha=0.75 if thin else 1.0,
            marker="o" if few else None,
            markersize=3.5,
        )
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.16, linewidth=0)
    if panel.arrow:
        arrow = panel.arrow
        shape = {"arrowstyle": "->", "color": ARROW_COLOR, "linewidth": 1.4}
        axes.annotate("", (arrow.start, arrow.y), (arrow.end, arrow.y), arrowprops=shape)
        middle = (arrow.start + arrow.end) / 2, arrow.y
        axes.annotate(
            arrow.text, middle, (0, 4), textcoords="offset points", ha="center", color=ARROW_COLOR, fontsize=8
        )
    _scale(axes, panel)
    axes.grid(alpha=0.25)


def _scale(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(panel.x.label, fontsize=9)
    axes.set_ylabel(panel.y.label, fontsize=9)
    axes.tick_params(which="both", labelsize=8)
    if panel.y.log:
        axes.set_yscale("log")
    if panel.x.log:
        axes.set_xscale("log")
        axes.set_xticks(np.unique(np.concatenate([series.x for series in panel.series])))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", rotation=45)
    if panel.x.unit == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis, unit in ((axes.xaxis, panel.x.unit), (axes.yaxis, panel.y.unit)):
        if unit == "share":
            axis.set_major_formatter(PercentFormatter(1.0))


def _bars(axes: Axes, panel: Panel, palette: Colors) -> None:
    for series in panel.series:
        axes.bar(series.x, series.y, width=0.65, color=palette[series.key][0], yerr=_error(series, series.y), capsize=3)
    axes.set_xticks(range(len(panel.series)), [series.label for series in panel.series], fontsize=8)
    axes.tick_params(axis="x", rotation=30 if len(panel.series) > 3 else 0)
    axes.set_ylabel(panel.y.label, fontsize=9)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.grid(alpha=0.25, axis="y")


def _intervals(axes: Axes, panel: Panel, palette: Colors) -> None:
    for series in panel.series:
        color = palette[series.key][0]
        axes.errorbar(series.x, series.y, xerr=_error(series, series.x), fmt="o", color=color, capsize=3)
    axes.set_yticks(range(len(panel.series)), [series.label for series in panel.series], fontsize=8)
    axes.set_ylim(len(panel.series) - 0.5, -0.5)
    axes.set_xlim(-0.03, 1.03)
    axes.axvline(0.5, color="black", linewidth=0.6, linestyle="--")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(panel.x.label, fontsize=9)
    axes.grid(alpha=0.25, axis="x")


def _error(series: Series, around: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64] | None:
    if series.low is None or series.high is None or not np.isfinite(series.low).all():
        return None
    return np.maximum(np.stack([around - series.low, series.high - around]), 0.0)


def _legend(canvas: Canvas, figure: Figure, palette: Colors, width: float) -> None:
    lines = [Line2D([], [], color=palette[key][0], linewidth=1.7) for key in figure.keys]
    labels = list(figure.keys)
    if any(series.style == "dashed" for panel in figure.panels for series in panel.series):
        lines.append(Line2D([], [], color="grey", linestyle="--", linewidth=1.1))
        labels.append("the paper")
    columns = min(len(labels), max(3, int(width / 1.6)))
    canvas.legend(lines, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
