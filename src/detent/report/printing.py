"""What is chosen for print: which figures, which groups, and how wide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detent.errors import ConfigError, nearest
from detent.report.loading import Results
from detent.report.spec import Figure

COLUMNS = {"single": 3.25, "double": 6.75}
"""Inches of one column and of the whole text of a paper in two columns."""
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
_NARROWEST, _WIDEST = 2.0, 20.0


def inches(width: str) -> float:
    """Return a width in inches: `single`, `double`, or a number with its unit, such as 8.5cm."""
    if width in COLUMNS:
        return COLUMNS[width]
    found = re.fullmatch(rf"(\d+\.?\d*)\s*({'|'.join(_UNITS)})", width.strip())
    if found is None:
        raise ConfigError(f"a width is single, double, or a number with in, cm, mm or pt (8.5cm); found '{width}'")
    size = float(found[1]) * _UNITS[found[2]]
    if not _NARROWEST <= size <= _WIDEST:
        raise ConfigError(f"a figure is {_NARROWEST:g} to {_WIDEST:g} inches wide; {width} is {size:.2f}")
    return size


def chosen_figures(figures: Mapping[str, Figure], names: Sequence[str]) -> dict[str, Figure]:
    """Return the figures of these names, in that order; `tasks` stands for `tasks-ppo`, `tasks-trpo`, ..."""
    chosen: dict[str, Figure] = {}
    for name in names:
        found = {figure.name: figure for figure in figures.values() if figure.is_of(name)}
        if not found:
            raise ConfigError(f"these runs give no figure '{name}'; {nearest(name, figures)}")
        chosen |= found
    return chosen


def only_groups(results: Results, names: Sequence[str]) -> Results:
    """Return the results of these groups; a variant's name stands for all its groups."""
    known = dict.fromkeys(name for run in results.runs for name in (run.variant, run.group))
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no group '{name}' among these runs; {nearest(name, known)}")
    return replace(results, runs=tuple(run for run in results.runs if {run.variant, run.group} & set(names)))
