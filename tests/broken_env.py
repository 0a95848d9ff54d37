"""An environment that gives NaN once a process has stepped it often enough."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray


class BrokenEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    steps_left: ClassVar[dict[str, int]] = {}
    """Good steps of all environments together, by what is bad after them; a test sets it."""

    def __init__(self, what: str) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        self._what = what

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps_left[self._what] -= 1
        bad = float("nan") if self.steps_left[self._what] < 0 else 0.0
        reward, observation = (bad, 0.0) if self._what == "reward" else (0.0, bad)
        return np.full(2, observation, np.float32), reward, False, False, {}


gymnasium.register("Broken-v0", entry_point="tests.broken_env:BrokenEnv", max_episode_steps=50)
