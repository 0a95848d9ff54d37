"""Draw figures with matplotlib: PNG and SVG for the screen, PDF and SVG at a given width for print."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
    ScalarFormatter,
)

from detent.report.spec import Figure, Kind, Panel, Series, Style
from detent.report.style import colors

ARROW_COLOR = "#c53030"
ROUND = [1, 2, 2.5, 5, 10]
"""Steps between ticks, up to a power of ten."""
LINES: dict[Style, Literal["-", "--", ":"]] = {"solid": "-", "dashed": "--", "level": ":"}

_MARGINS: dict[Kind, float] = {"curves": 0.4, "bars": 0.8, "intervals": 1.2}
"""Inches of a panel that its axes, and so its title, leave to labels."""
_NARROWEST: dict[Kind, float] = {"curves": 1.3, "bars": 2.0, "intervals": 2.0}
"""Inches of a panel in print."""

Colors = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Look:
    """Sizes in points, and a panel's width and height in inches."""

    title: float
    label: float
    tick: float
    line: float
    thin: float
    marker: float
    columns: int
    width: float
    height: float


def screen_look(figure: Figure) -> Look:
    columns = figure.columns or _balanced(len(figure.panels), 5)
    return Look(10, 9, 8, 1.7, 1.1, 3.5, columns, max(4.0, 6.0 / columns), 3.4)


def print_look(figure: Figure, width: float) -> Look:
    """Return the look of a figure `width` inches wide: no type below 7 points, and as many columns as that allows."""
    beside = any(panel.arrow or panel.legend for panel in figure.panels)
    most = max(1, int(width / (2.0 if beside else _NARROWEST[figure.kind])))
    columns = min(figure.columns or _balanced(len(figure.panels), most), most)
    panel = width / columns
    return Look(7.5, 7.5, 7, 1.2, 0.9, 2.2, columns, panel, min(max(0.78 * panel, 1.5), 2.1))


def _balanced(panels: int, most: int) -> int:
    """Return the columns of a grid whose last row is as full as can be."""
    return ceil(panels / ceil(panels / most))


def draw(figure: Figure, *paths: Path, palette: Colors | None = None, width: float | None = None) -> None:
    """Draw a figure to files, their format given by the extension. The same figure gives the same bytes.

    `width` in inches makes it a figure for print, to be included at that width.
    """
    look = screen_look(figure) if width is None else print_look(figure, width)
    save(_canvas(figure, palette or colors(figure.keys), look), figure.name, paths)


def save(canvas: Canvas, name: str, paths: Iterable[Path]) -> None:
    """Write a canvas to files, their format given by the extension; `name` makes the ids in an SVG reproducible."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        # Fonts of type 42 are embedded as outlines that publishers accept, which the default type 3 is not.
        with matplotlib.rc_context({"svg.hashsalt": name, "pdf.fonttype": 42}):
            canvas.savefig(path, metadata=metadata)


def _canvas(figure: Figure, palette: Colors, look: Look) -> Canvas:
    heights = _heights(figure, look)
    size = look.width * look.columns, sum(heights) + 0.06 * look.label + _extra_legend(figure, look)
    canvas = Canvas(figsize=size, dpi=150, layout="constrained")
    places = canvas.subplots(len(heights), look.columns, squeeze=False, height_ratios=heights).ravel()
    for axes, panel in zip(places, figure.panels, strict=False):
        {"curves": _curves, "bars": _bars, "intervals": _intervals}[figure.kind](axes, panel, palette, look)
        margin = _MARGINS[figure.kind] + (0.25 if panel.y.log else 0.0)
        title = _wrapped(panel.title, look.width - margin, look.title)
        axes.set_title(
            title,
            fontsize=look.title,
            pad=4 + (look.tick + 3 if panel.arrow else 0),
        )
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(figure.panels) :]:
        axes.set_axis_off()
    _label_outer(places[: len(figure.panels)], look.columns)
    if figure.kind == "curves" and not all(panel.legend for panel in figure.panels):
        _legend(canvas, figure, palette, look)
    # Once for all files: computing the layout takes as long as drawing.
    layout = canvas.get_layout_engine()
    if layout is not None:
        layout.execute(canvas)
    canvas.set_layout_engine("none")
    return canvas


def _heights(figure: Figure, look: Look) -> list[float]:
    """Return the inches of each row of panels; rows of intervals and bars are as high as their labels need."""
    rows = [figure.panels[start : start + look.columns] for start in range(0, len(figure.panels), look.columns)]
    if figure.kind == "curves":
        return [look.height] * len(rows)
    if figure.kind == "bars":
        return [look.height + max(_bar_labels(panel, look)[1] for panel in row) for row in rows]
    heights = []
    for row in rows:
        labels = [_compared(panel) for panel in row]
        # As many lines for each label of a panel as its longest has, and half a line between them.
        lines = (len(each) * (1.5 + max(label.count("\n") for label in each)) for each in labels)
        heights.append(0.07 * look.label + 1.3 * max(lines) * look.tick / 72)
    return heights


def _compared(panel: Panel) -> list[str]:
    """Return the labels of intervals, `a > b`, with the settings in groups' names on lines of their own."""
    labels = []
    for series in panel.series:
        first, _, second = series.label.partition(" > ")
        joint = "\n> " if " · " in first else " > "
        labels.append(f"{first}{joint}{second}".replace(" · ", "\n"))
    return labels


def _wrapped(text: str, inches: float, size: float) -> str:
    """Break text of `size` points into lines of `inches`; a character is about half as wide as high."""
    return textwrap.fill(text, int(72 * inches / (0.53 * size)))


def _label_outer(places: np.typing.NDArray[np.object_], columns: int) -> None:
    """Remove labels that the panel below or to the left repeats."""
    below = {index: places[index + columns] for index in range(len(places) - columns)}
    repeated_x = [index for index, other in below.items() if other.get_xlabel() == places[index].get_xlabel()]
    inner = [index for index in range(len(places)) if index % columns]
    repeated_y = [index for index in inner if places[index].get_ylabel() == places[index - 1].get_ylabel()]
    for index in repeated_x:
        places[index].set_xlabel("")
    for index in repeated_y:
        places[index].set_ylabel("")


def _curves(axes: Axes, panel: Panel, palette: Colors, look: Look) -> None:
    for series in panel.series:
        color = palette[series.key][0]
        few = len(series.x) == 1 or (len(series.x) < 12 and series.style == "solid")
        thin = series.style == "dashed"
        axes.plot(
            series.x,
            series.y,
            LINES[series.style],
            color=color,
            label=series.label,
            linewidth=look.thin if thin else look.line,
            alpha=0.75 if thin else 1.0,
            marker="o" if few else None,
            markersize=look.marker,
        )
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.16, linewidth=0)
    if panel.arrow:
        arrow = panel.arrow
        shape = {"arrowstyle": "->", "color": ARROW_COLOR, "linewidth": 0.8 * look.line, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (arrow.start, arrow.y), (arrow.end, arrow.y), arrowprops=shape)
        # Above the axes, where it crosses nothing.
        axes.annotate(
            arrow.text,
            (1, 1),
            (0, 2),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=ARROW_COLOR,
            fontsize=look.tick,
        )
    _scale(axes, panel, look)
    axes.grid(alpha=0.25)
    if panel.legend:
        # Beside the axes, where it covers no line.
        axes.legend(
            title=panel.legend,
            fontsize=look.tick,
            title_fontsize=look.tick,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            handlelength=1.6,
        )


def _scale(axes: Axes, panel: Panel, look: Look) -> None:
    axes.set_xlabel(panel.x.label, fontsize=look.label)
    axes.set_ylabel(_wrapped(panel.y.label, look.height - 0.4, look.label), fontsize=look.label)
    axes.tick_params(which="both", labelsize=look.tick)
    if panel.y.log:
        axes.set_yscale("log")
        _label_decades(axes)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(max(3, int(look.height / 0.4)), steps=ROUND))
    if panel.x.log:
        axes.set_xscale("log")
        axes.set_xticks(np.unique(np.concatenate([series.x for series in panel.series])))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", rotation=45)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(max(2, int(look.width / (0.06 * look.tick))), steps=ROUND))
    if panel.x.unit == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis, unit in ((axes.xaxis, panel.x.unit), (axes.yaxis, panel.y.unit)):
        if unit == "share":
            axis.set_major_formatter(PercentFormatter(1.0))


def _label_decades(axes: Axes) -> None:
    """Label the powers of ten on a logarithmic axis; if it has fewer than two, 2 and 5 times them or round numbers."""
    low, high = axes.get_ylim()
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    axes.yaxis.set_minor_formatter(NullFormatter())
    for subs in ((1.0,), (1.0, 2.0, 5.0)):
        ticks = np.outer(powers, subs)
        if np.count_nonzero((low <= ticks) & (ticks <= high)) >= 2:
            axes.yaxis.set_major_locator(LogLocator(subs=subs))
            axes.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
            return
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=ROUND))
    axes.yaxis.set_major_formatter("{x:g}")


def _bars(axes: Axes, panel: Panel, palette: Colors, look: Look) -> None:
    for series in panel.series:
        axes.bar(series.x, series.y, width=0.65, color=palette[series.key][0], yerr=_error(series, series.y), capsize=3)
    labels, beyond = _bar_labels(panel, look)
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(labelsize=look.tick)
    axes.tick_params(axis="x", rotation=90 if beyond else 0)
    axes.set_ylabel(_wrapped(panel.y.label, look.height - 0.6, look.label), fontsize=look.label)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.grid(alpha=0.25, axis="y")


def _bar_labels(panel: Panel, look: Look) -> tuple[list[str], float]:
    """Return the labels of the bars: upright if they fit side by side, else turned, with the inches that takes."""
    # A character is about half as wide as high.
    character = 0.53 * look.tick / 72
    upright = [series.label.replace(" · ", "\n") for series in panel.series]
    longest = max(len(line) for label in upright for line in label.split("\n"))
    if character * (longest + 1) * len(upright) < look.width - 0.6:
        return upright, 0.0
    turned = [series.label for series in panel.series]
    return turned, max(0.1, character * max(map(len, turned)) - 0.4)


def _intervals(axes: Axes, panel: Panel, palette: Colors, look: Look) -> None:
    for series in panel.series:
        error, color = _error(series, series.x), palette[series.key][0]
        axes.errorbar(series.x, series.y, xerr=error, fmt="o", color=color, capsize=3, markersize=look.marker + 1.5)
    axes.set_yticks(range(len(panel.series)), _compared(panel))
    axes.tick_params(labelsize=look.tick)
    axes.set_ylim(len(panel.series) - 0.5, -0.5)
    axes.set_xlim(-0.03, 1.03)
    axes.axvline(0.5, color="black", linewidth=0.6, linestyle="--")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(panel.x.label, fontsize=look.label)
    axes.grid(alpha=0.25, axis="x")


def _error(series: Series, around: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64] | None:
    if series.low is None or series.high is None or not np.isfinite(series.low).all():
        return None
    return np.maximum(np.stack([around - series.low, series.high - around]), 0.0)


def _legend(canvas: Canvas, figure: Figure, palette: Colors, look: Look) -> None:
    """Draw the figure's legend below its panels, every line as in the panels."""
    styles = _legend_styles(figure)
    lines = [
        Line2D([], [], color=palette[key][0], linestyle=LINES[style], linewidth=look.line)
        for key, style in styles.items()
    ]
    labels = list(styles)
    if any(series.style == "dashed" for panel in figure.panels for series in panel.series):
        lines.append(Line2D([], [], color="grey", linestyle=LINES["dashed"], linewidth=look.thin))
        labels.append("the paper")
    canvas.legend(
        lines,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels, look),
        fontsize=look.tick + 0.5,
        frameon=False,
    )


def _legend_styles(figure: Figure) -> dict[str, Style]:
    return {series.key: series.style for panel in figure.panels for series in panel.series if series.style != "dashed"}


def _legend_columns(labels: Collection[str], look: Look) -> int:
    room = 72 * look.width * look.columns / (look.tick + 0.5) / (0.53 * max(map(len, labels)) + 4)
    return _balanced(len(labels), max(1, int(room)))


def _extra_legend(figure: Figure, look: Look) -> float:
    """Return the inches of a legend beyond its second row, which the panels would lose otherwise."""
    labels = _legend_styles(figure)
    if figure.kind != "curves" or not labels or all(panel.legend for panel in figure.panels):
        return 0.0
    rows = ceil(len(labels) / _legend_columns(labels, look))
    return max(0, rows - 2) * 1.5 * look.tick / 72
