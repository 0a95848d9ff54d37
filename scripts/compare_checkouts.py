"""Compare the training speed of two checkouts, interleaved in one benchmark.

python scripts/compare_checkouts.py OTHER [--pairs 15] [--case HalfCheetah-v4:rn-d:paper ...] [--full]

OTHER is another checkout of Detent, at the commit to compare with; this Python runs both. Every pair measures one right
after the other, in alternating order. A ratio above 1 means that this checkout is faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from detent.bench.scheduling import Source, Worker, take_turns
from detent.bench.slices import ratios, steps_per_second, timing
from detent.cli.bench import CASES, say
from detent.config.presets import configure
from detent.training.run import resolve


def compare(task: str, variant: str, preset: str, other: Path, pairs: int, full: bool) -> None:
    config = resolve(configure(task, variant=variant, preset=preset, overrides={"device": "cpu"}))
    workers = {"this": Worker("detent", config, full), "other": Worker("detent", config, full, Source(other / "src"))}
    try:
        measured = take_turns(workers, pairs, say)
    finally:
        for worker in workers.values():
            worker.close()
    speeds = {name: timing([steps_per_second(each, config) for each in rounds]) for name, rounds in measured.items()}
    ratio = ratios(speeds["this"], speeds["other"])
    print(
        f"{task} {variant} {preset}: this {speeds['this']:.0f}, other {speeds['other']:.0f} steps per second; "
        f"ratio {ratio:.3f}, {pairs} pairs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--case", nargs="*", default=[":".join(case) for case in CASES])
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    for case in arguments.case:
        task, variant, preset = case.split(":")
        compare(task, variant, preset, arguments.other, arguments.pairs, arguments.full)


if __name__ == "__main__":
    main()
