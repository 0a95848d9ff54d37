"""Speed of the runs, beside the paper's two runtime tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from detent.config.presets import head_reads
from detent.paper.scores import paper_runtime
from detent.report.ablations import BINS, swept
from detent.report.curves import Comparison
from detent.report.runs import Run
from detent.report.table import Table


def speed_of(run: Run) -> float | None:
    """Return the median steps per second over iterations, without the first, which also warms up, if there are more."""
    speeds = run.metric("time/sps")[1]
    return float(np.median(speeds[1:] if len(speeds) > 1 else speeds)) if len(speeds) else None


def variants_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of steps per second and hours by task and group, then the means over a family's tasks.

    Beside them stand the paper's numbers, which are means over its five Gymnasium tasks.
    """
    paper = paper_runtime()["variants"]
    rows: list[dict[str, Any]] = []
    members: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)

    def add(family: str | None, who: dict[str, Any], row: dict[str, Any]) -> None:
        known = paper.get(who["group"], {}) if (family, who["algo"]) == ("gym", "ppo") else {}
        rows.append(who | row | {"paper_sps": known.get("sps"), "paper_hours_of_5M": known.get("hours")})

    for comparison in comparisons:
        for cell in comparison.cells:
            row = _timed(cell.runs)
            if row:
                family = cell.runs[0].family
                add(family, {"task": cell.task, "algo": cell.algo, "group": cell.group}, row)
                members[family or cell.task, cell.algo, cell.group].append(row)
    for (family, algo, group), parts in members.items():
        if len(parts) > 1:
            who = {"task": f"mean of {len(parts)} {family} tasks", "algo": algo, "group": group}
            add(family, who, _mean_of(parts))
    return Table.from_rows(rows, ("task", "algo", "group"))


def _mean_of(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over tasks of speeds and hours; hours only if every task has them."""
    hours = [part["hours"] for part in parts if part["hours"] is not None]
    return {
        "runs": sum(part["runs"] for part in parts),
        "threads": ", ".join(dict.fromkeys(part["threads"] for part in parts)),
        "sps": float(np.mean([part["sps"] for part in parts])),
        "hours": float(np.mean(hours)) if len(hours) == len(parts) else None,
        "steps": max(part["steps"] for part in parts),
    }


def bins_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of steps per second by number of bins, beside the paper's."""
    paper = paper_runtime()["bins"]
    rows = []
    for comparison in swept(comparisons, BINS):
        for cell in comparison.cells:
            settings = cell.runs[0].settings
            row, bins = _timed(cell.runs), settings.get(BINS)
            if row and "head.kind" in settings and head_reads(settings["head.kind"], BINS):
                same = comparison.task == "Humanoid-v4" and cell.runs[0].variant == "rn-d"
                known = paper.get(str(bins), {}) if same else {}
                who = {"task": cell.task, "variant": cell.runs[0].variant, "bins": bins}
                rows.append(who | row | {"paper_sps": known.get("sps"), "paper_hours_of_5M": known.get("hours")})
    rows.sort(key=lambda row: (row["task"], row["variant"], row["bins"]))
    return Table.from_rows(rows, ("task", "variant", "bins"))


def _timed(runs: Sequence[Run]) -> dict[str, Any] | None:
    speeds = [speed for run in runs if (speed := speed_of(run)) is not None]
    if not speeds:
        return None
    hours = [float(run.hours[-1]) for run in runs if run.complete and np.isfinite(run.hours[-1])]
    threads = sorted({str(run.settings["threads"]) for run in runs if "threads" in run.settings})
    return {
        "runs": len(speeds),
        "threads": ", ".join(threads),
        "sps": float(np.mean(speeds)),
        "hours": float(np.mean(hours)) if hours else None,
        "steps": max(run.last for run in runs),
    }
