"""A simulator: makes vector environments; here one that is a few lines of torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import detent
from detent.config import EnvConfig
from detent.envs import Episode, Observation, Step
from detent.spec import ActionSpec, EnvSpec, ObservationSpec


class PointMassEnvs:
    """Points on a line that are pushed towards the origin; an episode is truncated after `length` steps."""

    def __init__(self, num_envs: int, length: int) -> None:
        self.num_envs = num_envs
        self.spec = EnvSpec(ObservationSpec(2), ActionSpec((-1.0,), (1.0,)), max_episode_steps=length)
        self._length = length

    def reset(self, seed: int) -> Observation:
        self._generator = torch.Generator().manual_seed(seed)
        self._state = self._first()
        self._steps, self._total = 0, torch.zeros(self.num_envs)
        return {"state": self._state.clone()}

    def _first(self) -> Tensor:
        return torch.rand(self.num_envs, 2, generator=self._generator) * 2 - 1

    def step(self, action: Tensor) -> Step:
        position, velocity = self._state.unbind(-1)
        velocity = 0.9 * velocity + 0.1 * action.squeeze(-1)
        self._state = torch.stack([position + 0.1 * velocity, velocity], dim=-1)
        reward = -self._state.square().sum(-1)
        self._steps += 1
        self._total += reward
        never, ended = torch.zeros(self.num_envs, dtype=torch.bool), self._steps == self._length
        if not ended:
            return Step({"state": self._state.clone()}, reward, never, never, None, ())
        episodes = tuple(Episode(i, float(total), self._length) for i, total in enumerate(self._total))
        final, self._state = self._state, self._first()
        self._steps, self._total = 0, torch.zeros(self.num_envs)
        return Step({"state": self._state.clone()}, reward, never, ~never, {"state": final}, episodes)

    def close(self) -> None: ...


class PointMassSimulator(detent.Simulator):
    """Points on a line that are pushed towards the origin."""

    @dataclass(frozen=True)
    class Options:
        length: int = 32
        """Steps per episode."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> PointMassEnvs:
        if task != "PointMass":
            raise detent.ConfigError(f"this simulator has one task, PointMass, not '{task}'")
        return PointMassEnvs(num_envs, self._options.length)
