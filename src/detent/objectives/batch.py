"""The transitions of one rollout as an update sees them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from detent.spaces import Observation


@dataclass(frozen=True)
class Batch:
    """The first dimension of everything is B."""

    observation: Observation
    """Normalized."""
    choice: Tensor
    log_prob: Tensor
    """`[B, m]`, of the policy that collected."""
    value: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.advantages)

    def select(self, index: Tensor | slice) -> Batch:
        return Batch(
            {key: value[index] for key, value in self.observation.items()},
            self.choice[index],
            self.log_prob[index],
            self.value[index],
            self.advantages[index],
            self.returns[index],
        )


def normalized_advantages(advantages: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
