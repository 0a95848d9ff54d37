"""The environments of a run and the rollout buffer they fill."""

from __future__ import annotations

import torch

from detent.config import Config
from detent.envs import Observation, VectorEnv
from detent.models.policy import Policy
from detent.rollouts.rollout import Rollout, allocate, collect
from detent.seeding import derive_seed


class Collector:
    """Environments, the observations to act on next, and the rollout buffer, which every rollout reuses."""

    def __init__(self, policy: Policy, envs: VectorEnv, config: Config) -> None:
        self._policy, self._envs, self._config = policy, envs, config
        self._observation: Observation = {}
        self._rollout: Rollout | None = None

    def collect(self, iteration: int, fresh: bool) -> Rollout:
        """Collect the rollout of `iteration`; `fresh` rebuilds the environments, as the first rollout always does."""
        config, policy = self._config, self._policy
        if fresh or self._rollout is None:
            self._observation = self._envs.reset(derive_seed(config.seed, "envs", iteration))
        if self._rollout is None:
            self._rollout = allocate(policy, self._observation, config.rollout_steps)
        generator = torch.Generator(policy.device).manual_seed(derive_seed(config.seed, "act", iteration))
        self._observation = collect(policy, self._envs, self._observation, self._rollout, generator)
        return self._rollout

    def close(self) -> None:
        self._envs.close()
