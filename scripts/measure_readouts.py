"""Measure the three readouts of trained policies: return and smoothness of sampled, most probable and expected actions.

python scripts/measure_readouts.py RUN... > results/readouts/table.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import detent
from detent.config.io import read_run_config

READOUTS = {"sampled": "stochastic", "most probable": "deterministic", "expected": "mean"}


def main(runs: list[str]) -> None:
    columns = ["run", "task", "variant", "step", *(f"{name}: return (change)" for name in READOUTS)]
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for run in runs:
        config = read_run_config(Path(run))
        report = detent.evaluate_run(run, episodes=100, threads=1)
        best = max(READOUTS.values(), key=lambda key: report[key]["return"])
        cells = [Path(run).name, config.task, config.variant, f"{report['step']:,}"]
        for key in READOUTS.values():
            found = report[key]
            low, high = found["ci95"]
            mean = f"**{found['return']:.0f}**" if key == best else f"{found['return']:.0f}"
            cells.append(f"{mean} [{low:.0f}, {high:.0f}] ({found['action_change']:.2f})")
        print(f"| {' | '.join(cells)} |", flush=True)
        print(json.dumps(report), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
