"""The policy: everything needed to act on raw observations, and the critic that was trained with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from detent.config import Config
from detent.heads import make_head
from detent.networks import linear, make_trunk
from detent.normalize import ObservationNormalizer
from detent.spaces import EnvSpec, Observation
from detent.streams import derive


class Policy(nn.Module):
    """Observation normalizer, actor trunk, head, and a separate critic.

    Training works in two steps, `normalize` once and then `params` or `value`, because statistics are frozen from the
    first step of a rollout to the end of its update. To deploy, call the policy: `action = policy(observation)`.
    """

    def __init__(self, spec: EnvSpec, config: Config) -> None:
        super().__init__()
        self.spec = spec
        size = spec.observation.size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(config.seed, "init"))
            self.normalizer = ObservationNormalizer(size, config.normalize.clip)
            self.normalizing = config.normalize.observation
            self.head = make_head(spec.action, config.head)
            trunk = make_trunk(size, config.actor)
            self.actor = nn.Sequential(trunk, linear(trunk.num_features, self.head.num_outputs, gain=0.01))
            # A stream of its own, so that the critic starts the same whatever the actor drew before it.
            torch.manual_seed(derive(config.seed, "init-critic"))
            critic_trunk = make_trunk(size, config.critic)
            self.critic = nn.Sequential(critic_trunk, linear(critic_trunk.num_features, 1, gain=1.0))

    @property
    def device(self) -> torch.device:
        return self.normalizer.shift.device

    @property
    def num_actor_parameters(self) -> int:
        """How many of the first numbers in `parameters()` are the actor's own: those of head and actor network."""
        return sum(p.numel() for module in (self.head, self.actor) for p in module.parameters())

    def normalize(self, observation: Observation) -> Observation:
        """Raw observations as the networks take them."""
        if not self.normalizing:
            return observation
        return {**observation, "state": self.normalizer(observation["state"])}

    def update_statistics(self, observation: Observation) -> None:
        """Merge raw observations `[..., n]` into the normalizer."""
        if self.normalizing:
            self.normalizer.merge(observation["state"].flatten(end_dim=-2))

    def params(self, normalized: Observation) -> Tensor:
        """Action-distribution parameters `[B, m, P]`."""
        params: Tensor = self.head(self.actor(normalized["state"]))
        return params

    def value(self, normalized: Observation) -> Tensor:
        """State values `[B]`."""
        value: Tensor = self.critic(normalized["state"])
        return value.squeeze(-1)

    @torch.no_grad()
    def act(self, observation: Observation, generator: Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled choice `[N, m]`, its log-probability per dimension `[N, m]`, and the action it stands for."""
        params = self.params(self.normalize(observation))
        choice = self.head.sample(params, generator)
        return choice, self.head.log_prob(params, choice), self.head.to_action(choice)

    @torch.no_grad()
    def forward(self, observation: Any, deterministic: bool = True, generator: Generator | None = None) -> Any:
        """The action for a raw observation, single or batched, as the environment gives it.

        Takes what the environment's observation space describes (a vector, or a Dict of vectors) as NumPy arrays, and
        gives a NumPy array; or a tensor `[..., n]`, and gives a tensor. The most probable action, or a sampled one.
        """
        state = observation if isinstance(observation, Tensor) else self._state(observation)
        if state.shape[-1:] != (self.spec.observation.size,):
            raise ValueError(
                f"the observation has shape {tuple(state.shape)}; this policy takes vectors of length "
                f"{self.spec.observation.size}, single or batched"
            )
        params = self.params(self.normalize({"state": state.to(self.normalizer.shift)}))
        choice = self.head.mode(params) if deterministic else self.head.sample(params, generator)
        action = self.head.to_action(choice)
        return action if isinstance(observation, Tensor) else action.numpy(force=True)

    def _state(self, observation: Any) -> Tensor:
        array: NDArray[np.float32] = self.spec.observation.state(observation)
        # A copy: torch refuses negative strides and warns of read-only arrays.
        return torch.from_numpy(array.copy()).to(self.device)
