"""The transitions of one rollout as an update sees them."""

from __future__ import annotations

from collections.abc import Iterator
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

    def minibatches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """The batch in the order of the indices `order` `[B]`, `size` transitions at a time."""
        if "rgb" in self.observation:
            # A second copy of all images would double the memory of an update.
            yield from (self.select(order[start : start + size]) for start in range(0, len(self), size))
        else:
            shuffled = self.select(order)
            yield from (shuffled.select(slice(start, start + size)) for start in range(0, len(self), size))

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
