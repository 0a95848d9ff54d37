"""Make, reset, step and train a few iterations of every ManiSkill task of the paper on the CPU.

python scripts/try_maniskill_tasks.py [--images] [--steps 512] [TASK ...]

Prints one line per task. A task whose assets are missing is reported with the command that downloads them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import detent
from detent.config.presets import table
from detent.errors import ConfigError
from detent.training.run_directory import read_rows


def try_task(task: str, obs: str, steps: int) -> str:
    overrides = {
        "env.obs": obs,
        "env.num_envs": 4,
        "env.backend": "physx_cpu",
        "rollout_steps": steps // 16,
        "steps": steps,
        "update.minibatches": 4,
        "eval.episodes": 2,
        "eval.interval": steps,
        "checkpoint.interval": steps,
    }
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = detent.train(detent.configure(task, overrides=overrides), out=run)
        rows = read_rows(run / "metrics.jsonl")
        spec = detent.load(run).spec
    assert result.evaluation is not None
    played = result.evaluation["stochastic"]
    shapes = ", ".join(f"{key} {list(shape)}" for key, (shape, _) in spec.observation.parts.items())
    return (
        f"{task:20} {shapes}; {spec.action.size} actions; {len(rows)} iterations; entropy {rows[0]['entropy']:.2f} to "
        f"{rows[-1]['entropy']:.2f}; value loss {rows[0]['value_loss']:.4f} to {rows[-1]['value_loss']:.4f}; "
        f"evaluation of {played['length']:.0f} steps, return {played['return']:.2f}, "
        f"success once {played['success_once']:.2f}; {time.perf_counter() - started:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--images", action="store_true", help="the five image tasks, with the state beside the images")
    parser.add_argument("--steps", type=int, default=512)
    given = parser.parse_args()
    settings = table("paper")["maniskill-rgb" if given.images else "maniskill-state"]
    for task in given.tasks or settings["tasks"]:
        try:
            print(try_task(task, "rgb+state" if given.images else "state", given.steps), flush=True)
        except ConfigError as error:
            print(f"{task:20} {error}", flush=True)


if __name__ == "__main__":
    main()
