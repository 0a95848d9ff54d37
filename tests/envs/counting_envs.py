"""Seats whose every number is known, for the pool of workers; imported by its processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detent.envs.base import Episode
from detent.envs.workers import Arrays, SingleStep
from detent.errors import ConfigError

DIE, FAIL = 7.0, 8.0
"""Actions that end the process and raise an error."""


def refuse(sentence: str) -> None:
    raise ConfigError(sentence)


@dataclass(frozen=True)
class Counting:
    """Makes a env that counts its steps from its seed; an episode ends after `length` of them.

    The observation is (count, process), the picture is filled with the count, the reward is the action.
    """

    index: int
    length: int

    def __call__(self) -> CountingSeat:
        return CountingSeat(self)


class CountingSeat:
    def __init__(self, maker: Counting) -> None:
        self._maker = maker
        # One array for all observations, which a careless pool would keep.
        self._state = np.zeros(2, np.float32)

    def _observe(self) -> Arrays:
        self._state[:] = self._count, os.getpid()
        return {"state": self._state, "rgb": np.full((2, 3, 3), self._count % 256, np.uint8)}

    def reset(self, seed: int) -> Arrays:
        self._count, self._first = seed, seed
        return self._observe()

    def step(self, action: NDArray[np.float64]) -> SingleStep:
        if action[0] == DIE:
            os._exit(5)
        if action[0] == FAIL:
            raise RuntimeError(f"environment {self._maker.index} is tired")
        self._count += 1
        if self._count - self._first < self._maker.length:
            return SingleStep(self._observe(), float(action[0]), False, False)
        final = {key: value.copy() for key, value in self._observe().items()}
        episode = Episode(self._maker.index, float(self._count), self._maker.length)
        self._count = self._first = self._count + 100
        return SingleStep(self._observe(), float(action[0]), True, False, final, episode)

    def close(self) -> None:
        pass
