"""Compare ManiSkill's speed on the CPU through Detent's adapter and through the setup that ManiSkill recommends.

python scripts/compare_maniskill_speed.py [--task PushCube-v1] [--processes 2] [--envs 2] [--steps 200] [--repeats 3]

Both run the same task with the same random actions; episodes end when the task is solved or its time is up, and the
next begins at once. The recommended setup is Gymnasium's AsyncVectorEnv over CPUGymWrapper, an environment per process.
Detent has the same number of processes, and with `--envs` above `--processes` several environments in each. The two
take turns, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from detent.config import EnvConfig
from detent.envs.maniskill import DEFAULTS, ManiSkillPool


def make_theirs(task: str) -> gymnasium.Env[Any, Any]:
    import mani_skill.envs
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    assert mani_skill.envs
    torch.set_num_threads(1)
    env = gymnasium.make(task, obs_mode="state", sim_backend="physx_cpu", render_backend="cpu", **DEFAULTS)
    wrapped: gymnasium.Env[Any, Any] = CPUGymWrapper(env)
    return wrapped


class Theirs:
    def __init__(self, task: str, envs: int) -> None:
        makers = [partial(make_theirs, task)] * envs
        self._envs = AsyncVectorEnv(makers, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
        self._envs.reset(seed=list(range(envs)))

    def step(self, action: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        self._envs.step(action)

    def close(self) -> None:
        self._envs.close()


class Ours:
    def __init__(self, task: str, envs: int, processes: int) -> None:
        self._envs = ManiSkillPool(task, envs, EnvConfig(), processes)
        self._envs.reset(0)

    def step(self, action: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        self._envs.step(torch.from_numpy(action))

    def close(self) -> None:
        self._envs.close()


def rate(envs: Ours | Theirs, num_envs: int, steps: int, size: int) -> float:
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, num_envs, size)).astype(np.float32)
    started = time.perf_counter()
    for action in actions:
        envs.step(action)
    return steps * num_envs / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="PushCube-v1")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    ours = Ours(given.task, given.envs, given.processes)
    theirs = Theirs(given.task, given.processes)
    size = ours._envs.spec.action.size
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(given.repeats + 1):
        found["ours"].append(rate(ours, given.envs, given.steps, size))
        found["theirs"].append(rate(theirs, given.processes, given.steps, size))
    ours.close()
    theirs.close()
    # The first turn warms up.
    rates = {name: values[1:] for name, values in found.items()}
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    for name, what in (
        ("ours", f"Detent, {given.envs} environments in {given.processes} processes"),
        ("theirs", f"AsyncVectorEnv with CPUGymWrapper, {given.processes} environments and processes"),
    ):
        each = ", ".join(f"{value:.0f}" for value in rates[name])
        print(f"{what}: {median(rates[name]):.0f} steps per second ({each})")
    print(f"{given.task}: ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
