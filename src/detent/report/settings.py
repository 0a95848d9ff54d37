"""What the runs were trained with, and the scores that returns are normalized by, as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detent.config.presets import ALGORITHMS, head_reads, table
from detent.report.curves import Comparison, algorithm_order
from detent.report.runs import ASIDE, ASIDE_GROUPS, Run
from detent.report.table import Table

_LEFT_OUT = (ASIDE | {"init_from", "env.kwargs"}) - {"preset", "steps"}


def hyperparameters_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of the settings that determine what is trained, a column per benchmark and algorithm.

    A setting that differs within a column is shown with the variants, groups or tasks that have each value.
    """
    columns: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for comparison in comparisons:
        for run in comparison.runs:
            if run.on_policy and run.settings:
                columns[run.family or run.task, run.algo].append(run)
    order = sorted(columns, key=lambda pair: (pair[0], algorithm_order(pair[1])))
    keys = dict.fromkeys(key for runs in columns.values() for run in runs for key in run.settings)
    # Settings of a section stand together, also if only later versions have them.
    sections = list(dict.fromkeys(_section(key) for key in keys))
    rows = []
    for key in sorted(keys, key=lambda key: sections.index(_section(key))):
        if key in _LEFT_OUT or key.startswith(ASIDE_GROUPS):
            continue
        cells = {f"{family} {algo.upper()}": _cell(key, columns[family, algo]) for family, algo in order}
        if any(cells.values()):
            rows.append({"setting": key, **cells})
    return Table.from_rows(rows, ("setting",))


def _section(key: str) -> str:
    return key.rpartition(".")[0].partition(".")[0]


def _cell(key: str, runs: Iterable[Run]) -> str:
    runs = [run for run in runs if key in run.settings and _applies(key, run.settings)]
    values = dict.fromkeys(str(run.settings[key]) for run in runs)
    if len(values) < 2:
        return next(iter(values), "")
    for attribute in ("variant", "group", "task"):
        owners = {
            value: dict.fromkeys(getattr(run, attribute) for run in runs if str(run.settings[key]) == value)
            for value in values
        }
        if sum(map(len, owners.values())) == len({getattr(run, attribute) for run in runs}):
            return "; ".join(f"{value} ({', '.join(names)})" for value, names in owners.items())
    return ", ".join(values)


def _applies(key: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a setting has a meaning in this configuration, which holds all of them."""
    section, _, name = key.partition(".")
    if section in ALGORITHMS:
        return section == settings.get("algo")
    if section == "encoder":
        return str(settings.get("env.obs")).startswith("rgb")
    if key == "head.mu" and settings.get("head.spacing") != "mu-law":
        return False
    if section == "head" and not head_reads(str(settings.get("head.kind")), key):
        return False
    if section in ("actor", "critic") and name in ("layer_norm", "residual"):
        return settings.get(f"{section}.kind") == "rn"
    return settings[key] not in ("", [])


def references_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of the returns that scores 0 and 1 stand for on each task."""
    tasks = table("tasks")
    names = [name for name in dict.fromkeys(c.task for c in comparisons) if "td3_score" in tasks.get(name, {})]
    rows = ({"task": name, "random": tasks[name]["random_score"], "td3": tasks[name]["td3_score"]} for name in names)
    return Table.from_rows(rows, ("task", "random", "td3"))
