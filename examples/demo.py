"""Train RN-D on Hopper-v4 for about three minutes on two cores, then show what it learned.

`make demo` runs this. It leaves a run directory with a learning curve and a video of the trained policy.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import detent
from detent import report
from detent.training.run_directory import read_rows
from detent.training.video import RenderError, record_run

TASK = "Hopper-v4"
STEPS = 50_000
SETTINGS = {"steps": STEPS, "eval.interval": STEPS // 10, "eval.episodes": 20, "eval.num_envs": 20}
DETENT = Path(sys.executable).with_name("detent")
"""The `detent` command of this Python environment, which need not be on the PATH."""


def main() -> None:
    config = detent.configure(TASK, preset="fast", overrides=SETTINGS)
    run = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    if not detent.train(config, out=run, callbacks=[detent.progress()]).finished:
        print(f"stopped; resume with: {DETENT} train --resume {run}")
        return

    before, *_, after = read_rows(run / "evals.jsonl")
    print(f"\n{TASK}, {before['stochastic']['episodes']} episodes each".ljust(49) + "   before      after")
    readouts = {"sampled": "stochastic", "most probable": "deterministic", "expected": "mean"}
    for name, play in readouts.items():
        for what, key in (("return", "return"), ("score (0 random, 1 TD3)", "score"), ("episode length", "length")):
            print(f"  {f'{what}, {name} actions':46}{before[play][key]:9.2f}  {after[play][key]:9.2f}")

    report.draw(report.figures(report.load(run))["tasks-ppo"], run / "learning-curve.png")
    print(f"\nlearning curve: {run / 'learning-curve.png'}")
    try:
        for path in record_run(run):
            print(f"video:          {path}")
    except RenderError as error:
        print(f"no video:       {error}")
    print(f"run directory:  {run} ({DETENT} eval {run})")


if __name__ == "__main__":
    main()
