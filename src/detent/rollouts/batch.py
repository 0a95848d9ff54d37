"""The transitions of one rollout in the form that an update uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detent.config import AdvantageConfig
from detent.models.policy import Policy
from detent.rollouts.advantages import gae
from detent.rollouts.rollout import Rollout
from detent.spec import Observation


@dataclass(frozen=True)
class Batch:
    """Transitions of one rollout; the first dimension of every tensor is B."""

    observation: Observation
    """Normalized observations."""
    choice: Tensor
    log_prob: Tensor
    """`[B, m]`, under the policy that collected the rollout."""
    value: Tensor
    advantages: Tensor
    returns: Tensor

    @classmethod
    def from_rollout(cls, policy: Policy, rollout: Rollout, reward: Tensor, config: AdvantageConfig) -> Batch:
        """Estimate advantages and flatten time and environments; `reward` `[T, N]` is the rollout's, scaled or raw."""
        advantages = gae(
            reward,
            rollout.value,
            rollout.last_value,
            rollout.final_value,
            rollout.terminated.to(policy.device),
            rollout.truncated.to(policy.device),
            config.gamma,
            config.gae_lambda,
            config.bootstrap_on_termination,
        )
        return cls(
            observation={key: value.flatten(end_dim=1) for key, value in policy.normalize(rollout.observation).items()},
            choice=rollout.choice.flatten(end_dim=1),
            log_prob=rollout.log_prob.flatten(end_dim=1),
            value=rollout.value.flatten(),
            advantages=advantages.flatten(),
            returns=(advantages + rollout.value).flatten(),
        )

    def __len__(self) -> int:
        return len(self.advantages)

    def tensors(self) -> list[Tensor]:
        return [*self.observation.values(), self.choice, self.log_prob, self.value, self.advantages, self.returns]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """Return a batch with other tensors, given in the order of `Batch.tensors`."""
        count = len(self.observation)
        return Batch(dict(zip(self.observation, tensors[:count], strict=True)), *tensors[count:])

    def minibatches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """Yield the transitions at the indices `order`, `size` of them at a time."""
        yield from map(self.with_tensors, zip(*(_pieces(each, order, size) for each in self.tensors()), strict=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch with `function` applied to every tensor."""
        return self.with_tensors([function(tensor) for tensor in self.tensors()])

    def select(self, index: Tensor | slice) -> Batch:
        return self.map(lambda tensor: tensor[index])


def _pieces(tensor: Tensor, order: Tensor, size: int) -> Iterable[Tensor]:
    if tensor.dim() > 2:
        # Index images one minibatch at a time: a second copy of all of them would double the memory of an update.
        return (tensor[rows] for rows in order.split(size))
    pieces: tuple[Tensor, ...] = tensor[order].split(size)
    return pieces


def normalized_advantages(advantages: Tensor) -> Tensor:
    """Normalize advantages to mean 0 and standard deviation 1 over the last dimension."""
    std, mean = torch.std_mean(advantages, dim=-1, keepdim=True)
    return (advantages - mean) / (std + 1e-8)
