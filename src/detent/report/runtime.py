"""Speed of the runs, beside the paper's two runtime tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    """Make the table of steps per second and hours by task and group, beside the paper's mean over Gymnasium tasks."""
    paper = paper_runtime()["variants"]
    rows = []
    for comparison in comparisons:
        for cell in comparison.cells:
            row = _timed(cell.runs)
            if row:
                known = paper.get(cell.group, {}) if comparison.algo == "ppo" else {}
                who = {"task": cell.task, "algo": cell.algo, "group": cell.group}
                rows.append(who | row | {"paper_sps": known.get("sps"), "paper_hours_of_5M": known.get("hours")})
    return Table.from_rows(rows, ("task", "algo", "group"))


def bins_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of steps per second by number of bins, beside the paper's."""
    paper = paper_runtime()["bins"]
    rows = []
    for comparison in swept(comparisons, BINS):
        for cell in comparison.cells:
            row, bins = _timed(cell.runs), cell.runs[0].settings.get(BINS)
            if row and cell.runs[0].settings.get("head.kind") == "categorical":
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
