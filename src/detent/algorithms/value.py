"""The critic's regression."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """Half the mean squared error; with `clip`, the worse of it and of the error of a value held within `clip`."""
    error, held = _errors(value, old_value, target, clip)
    return 0.5 * torch.maximum(error.square(), held.square()).mean()


def value_gradient(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """The gradient `[B]` of half the summed squared errors in `value`."""
    error, held = _errors(value, old_value, target, clip)
    # Where the worse error is that of a held value, a change of the value changes nothing.
    return torch.where(error.abs() >= held.abs(), error, 0.0)


def _errors(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Of `value`, and of `value` held within `clip` of the old one; the same where there is no clip."""
    error = value - target
    if clip == 0:
        return error, error
    return error, value.clamp(old_value - clip, old_value + clip) - target
