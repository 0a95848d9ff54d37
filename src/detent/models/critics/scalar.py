"""Regression on the return: the usual critic."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.config import CriticConfig
from detent.models.critics.base import CriticHead


class ScalarCritic(CriticHead):
    """One number per state, trained with half the mean squared error."""

    num_outputs = 1
    clips_values = True

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()

    def value(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        """Return half the mean squared error, with `clip` of whichever is worse: the value or the clipped value."""
        error, held = value_errors(self.value(outputs), returns, old_value, clip)
        return 0.5 * torch.maximum(error.square(), held.square()).mean()


def value_errors(value: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the errors of `value` and of `value` clipped to within `clip` of the old one; equal if `clip` is 0."""
    error = value - returns
    if clip == 0:
        return error, error
    return error, value.clamp(old_value - clip, old_value + clip) - returns
