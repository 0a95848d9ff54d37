"""The critic's regression."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """Half the mean squared error; with `clip`, the worse of it and of a prediction moved by at most `clip`."""
    error = (value - target).square()
    if clip > 0:
        moved = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (moved - target).square())
    return 0.5 * error.mean()
