"""Make src/detent/paper/paper_scores.csv from the paper's learning curves as read off its figures.

python scripts/make_paper_scores.py CURVES.csv > src/detent/paper/paper_scores.csv

CURVES.csv has the columns algorithm,task,variant,env_steps,score.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

SHARES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
CLOSE = 0.04
"""Largest gap, as a share of the budget, that is interpolated; a wider gap stays empty."""
HEADER = """\
# Scores of the RN-D paper (arXiv 2601.23075), read off its figures pixel by pixel; accuracy about 0.01.
# TD3-normalized return on Gymnasium tasks, success rate on ManiSkill. One row per curve: `budget` is its length in
# environment steps, the columns after it are shares of the budget. Empty: hidden behind another curve.
# The TRPO and SPO curves stop one point before the budget; that point stands at 1.
# Written by scripts/make_paper_scores.py.
"""


def score_at(curve: dict[int, float], steps: float, budget: int) -> float | None:
    """Return the score at `steps`: from the point there, close neighbours or (at the end) the last point if close."""
    before = max((s for s in curve if s <= steps), default=None)
    after = min((s for s in curve if s >= steps), default=None)
    if before is None:
        return None
    if after is None:
        return curve[before] if steps == budget and budget - before <= CLOSE / 2 * budget else None
    if before == after:
        return curve[before]
    if after - before > CLOSE * budget:
        return None
    weight = (steps - before) / (after - before)
    return (1 - weight) * curve[before] + weight * curve[after]


def main() -> None:
    curves: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    with Path(sys.argv[1]).open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["algorithm"], row["task"], row["variant"])
            curves[key][int(row["env_steps"])] = float(row["score"])
    sys.stdout.write(HEADER)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["algorithm", "task", "variant", "budget", *SHARES])
    for key, curve in sorted(curves.items()):
        budget = 5_000_000 if max(curve) <= 5_000_000 else 50_000_000
        scores = [score_at(curve, share * budget, budget) for share in SHARES]
        writer.writerow([*key, budget, *("" if score is None else f"{score:.3f}" for score in scores)])


if __name__ == "__main__":
    main()
