"""Values as distributions over the bins of a fixed support, trained by cross-entropy."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from detent.errors import ConfigError
from detent.models.critics.base import CriticHead


class CategoricalCritic(CriticHead):
    """A softmax over bins; its value is the expected bin.

    A subclass chooses the bins and projects returns onto them. Returns outside of the support are clamped to it, and
    `value_saturation` is their share.
    """

    # A uniform distribution at first, whose value is 0 if the support is symmetric.
    output_gain = 0.0
    support: Tensor
    """The lowest and the highest return that can be represented, `[2]`."""
    bins: Tensor
    """The return that each bin stands for, `[K]`."""

    def __init__(self, support: tuple[float, float], bins: Tensor) -> None:
        super().__init__()
        self.num_outputs = len(bins)
        # Buffers, so that a checkpoint keeps the support that its weights were trained on.
        self.register_buffer("support", torch.tensor(support))
        self.register_buffer("bins", bins.to(self.support.dtype))

    @abstractmethod
    def project(self, returns: Tensor) -> Tensor:
        """Return the target distributions `[B, K]` of `returns` `[B]` that lie within the support."""

    def target(self, returns: Tensor) -> Tensor:
        """Return the target distributions `[B, K]` of any `returns` `[B]`."""
        return self.project(returns.clamp(self.support[0], self.support[1]))

    def value(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.bins

    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        """Return the mean cross-entropy between the targets and the predicted distributions."""
        return -(self.target(returns) * outputs.log_softmax(-1)).sum(-1).mean()

    def statistics(self, outputs: Tensor, returns: Tensor) -> dict[str, Tensor]:
        outside = (returns < self.support[0]) | (returns > self.support[1])
        return {"value_saturation": outside.to(outputs.dtype).mean()}


def require_support(low: float, high: float, bins: int) -> None:
    """Refuse options that describe no support."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"critic.head_options has low {low} and high {high}; the support goes from a finite low to a higher high"
        )
    if bins < 2:
        raise ConfigError(f"critic.head_options.bins is {bins}; a categorical critic needs at least 2 bins")
