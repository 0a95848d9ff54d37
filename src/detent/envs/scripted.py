"""Two tiny environments with known solutions: `Scripted-v0` and `Target-v0` of this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

EPISODES: tuple[tuple[tuple[float, ...], bool, bool], ...] = (
    ((1.0, 2.0, 3.0), True, False),
    ((10.0, 20.0), False, True),
    ((100.0,), True, True),
)
"""Rewards of each episode, and the `terminated` and `truncated` that end it: each alone, then both at once."""


class ScriptedEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Cycles through EPISODES, whatever the action; a seed selects the first.

    The observation is (episode, step in it), always in the same array, which a careless adapter would keep.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 10.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._array = np.zeros(2, np.float32)
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._episode = (self._episode + 1 if seed is None else seed) % len(EPISODES)
        self._array[:] = self._episode, 0
        return self._array, {"only in reset": "text"}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        rewards, terminated, truncated = EPISODES[self._episode]
        t = int(self._array[1])
        self._array[1] = t + 1
        last = t + 1 == len(rewards)
        # Success is reported only while it lasts (in the first step); real infos also hold arrays of varying length.
        info = {"is_success": self._episode == 1 and t == 0, "t": t, "note": "text", "contacts": np.zeros(t)}
        return self._array, rewards[t], last and terminated, last and truncated, info


class TargetEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Hit a target that is a linear function of the observation, a new one at every step; the best return is 0.

    Target i lies in the middle of the range of action dimension i plus 0.4 ranges times observation i; the reward is
    minus the squared distance, with each dimension measured in its own range.
    """

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(np.array([-3.0, 0.0], np.float32), np.array([-1.0, 10.0], np.float32))

    def _observe(self) -> NDArray[np.float32]:
        self._observation = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert isinstance(self.action_space, Box)
        low, high = self.action_space.low, self.action_space.high
        place = (action - low) / (high - low)
        reward = -float(np.square(place - (0.5 + 0.4 * self._observation)).sum())
        return self._observe(), reward, False, False, {}


gymnasium.register("Scripted-v0", entry_point="detent.envs.scripted:ScriptedEnv")
gymnasium.register("Target-v0", entry_point="detent.envs.scripted:TargetEnv", max_episode_steps=8)
