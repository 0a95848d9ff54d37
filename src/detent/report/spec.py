"""Figures as data. The page draws them in the browser, `drawing` with matplotlib; both show the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from detent.report.runs import Array

Kind = Literal["curves", "bars", "intervals"]
Style = Literal["solid", "dashed", "level"]


@dataclass(frozen=True)
class Axis:
    label: str
    unit: Literal["number", "steps", "share"] = "number"
    log: bool = False


@dataclass(frozen=True)
class Series:
    """Points with an interval. `key` is the series' group: it sets the colour and the toggle that hides the series."""

    key: str
    label: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    runs: Array | None = None
    """Runs behind each point."""
    style: Style = "solid"
    """`dashed` is a curve of the paper; `level` is one value drawn across the panel."""


@dataclass(frozen=True)
class Arrow:
    """The paper's red arrow: the first group reaches score `y` as many times sooner as `text`, above the axes, says."""

    start: float
    end: float
    y: float
    text: str
    keys: tuple[str, str]
    """The two groups compared; the arrow is hidden with either of them."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes. In `bars` and `intervals` each series is one point, at its index in the list."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    arrow: Arrow | None = None
    legend: str = ""
    """Title of a legend of the panel, where lines mean something else in each panel; the figure has none then."""


@dataclass(frozen=True)
class Figure:
    """Panels with a common legend. `name` is also the name of the figure's files."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    kind: Kind = "curves"
    columns: int | None = None
    """Panels in a row, where rows mean something; by default as many as fit."""

    def is_of(self, name: str) -> bool:
        """Return whether `name` is this figure's or a common one: `tasks` names `tasks-ppo`, `tasks-trpo`, ..."""
        return self.name == name or self.name.startswith(f"{name}-")

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the figure's groups, in order of first appearance."""
        return tuple(dict.fromkeys(series.key for panel in self.panels for series in panel.series))


def thinned(values: Array | None, digits: int = 5) -> list[float | None] | None:
    """Return numbers for JSON: a few digits, None for NaN."""
    if values is None:
        return None
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
