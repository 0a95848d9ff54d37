"""Copy the finished runs of a study to a results directory, small enough to commit.

python scripts/harvest_study.py STUDY RESULTS [--rows 200]

Keeps config.toml, run.json, evals.jsonl, and metrics.jsonl thinned to at most ROWS rows, by run id, but no checkpoints.
Copied back into a study directory, such runs count as finished.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from detent.study.directory import read_state, read_study


def thin(lines: list[str], rows: int) -> list[str]:
    """Return evenly spaced lines, including the last one."""
    stride = -(-len(lines) // rows)
    return lines[::-1][:: max(1, stride)][::-1]


def harvest(study: Path, results: Path, rows: int) -> list[str]:
    """Copy every finished run to `results`; return their ids."""
    finished = [entry for entry in read_study(study)["runs"] if read_state(study, entry).status == "finished"]
    for entry in finished:
        run, copy = study / entry["path"], results / entry["id"]
        copy.mkdir(parents=True, exist_ok=True)
        for name in ("config.toml", "run.json", "evals.jsonl"):
            shutil.copyfile(run / name, copy / name)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (copy / "metrics.jsonl").write_text("".join(thin(lines, rows)))
    return [entry["id"] for entry in finished]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--rows", type=int, default=200)
    arguments = parser.parse_args()
    found = harvest(arguments.study, arguments.results, arguments.rows)
    print(f"{len(found)} finished runs in {arguments.results}")


if __name__ == "__main__":
    main()
