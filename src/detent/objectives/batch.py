"""The transitions of one rollout as an update sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
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

    def tensors(self) -> list[Tensor]:
        return [*self.observation.values(), self.choice, self.log_prob, self.value, self.advantages, self.returns]

    def minibatches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """The transitions of the indices `order`, `size` of them at a time."""
        if "rgb" in self.observation:
            # A second copy of all images would double the memory of an update.
            yield from (self.select(rows) for rows in order.split(size))
        else:
            shuffled = self.select(order)
            yield from (shuffled.select(slice(start, start + size)) for start in range(0, len(order), size))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same with `function` of every tensor."""
        return Batch(
            {key: function(value) for key, value in self.observation.items()},
            function(self.choice),
            function(self.log_prob),
            function(self.value),
            function(self.advantages),
            function(self.returns),
        )

    def select(self, index: Tensor | slice) -> Batch:
        return self.map(lambda tensor: tensor[index])


def normalized_advantages(advantages: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and standard deviation 1, over the last dimension."""
    std, mean = torch.std_mean(advantages, dim=-1, keepdim=True)
    return (advantages - mean) / (std + 1e-8)
