"""Environments with the faults and freedoms that users' own have; workers import this module by name."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

Result = tuple[Any, float, bool, bool, dict[str, Any]]


class MoodyEnv(gymnasium.Env[Any, Any]):
    """Its process dies at action 1, it raises at action 0.5; the Box is float64 and it insists on it."""

    def __init__(self, high: float = 1.0, dies_in_worker: bool = False) -> None:
        if dies_in_worker and multiprocessing.parent_process() is not None:
            os._exit(9)
        self.observation_space = Box(-1.0, 1.0, (1,), np.float64)
        self.action_space = Box(np.array([-0.1]), np.array([high]), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> Result:
        assert self.action_space.contains(action), action
        if action[0] == 1.0:
            os._exit(7)
        if action[0] == 0.5:
            raise KeyError("a bad mood")
        return np.zeros(1), 0.0, False, False, {}


class RememberingEnv(gymnasium.Env[Any, Any]):
    """Counts its resets, and no seed makes it forget; its observation is a Dict."""

    def __init__(self) -> None:
        self.observation_space = Dict({"z": Box(-1.0, 9.0, (2,)), "a": Box(-1.0, 9.0, (1,))})
        self.action_space = Box(-1.0, 1.0, (1,))
        self.resets = 0

    def _observe(self) -> dict[str, Any]:
        return {"a": np.full(1, self.resets, np.float32), "z": np.array([7.0, 8.0], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets += 1
        return self._observe(), {}

    def step(self, action: Any) -> Result:
        return self._observe(), 0.0, True, False, {}


gymnasium.register("Moody-v0", entry_point="faulty_envs:MoodyEnv")
gymnasium.register("Remembering-v0", entry_point="faulty_envs:RememberingEnv")
