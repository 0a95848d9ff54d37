"""The critic's regression."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Half the mean squared error, and its gradient in `value` `[B]`.

    With `clip`, the worse of it and of the error of a prediction moved by at most `clip`.
    """
    error = value - target
    square, slope = error.square(), error.detach()
    if clip > 0:
        change = value - old_value
        moved_square = (old_value + change.clamp(-clip, clip) - target).square()
        # Where the worse error is that of a prediction the clip holds back, a change of the value changes nothing.
        slope = torch.where((change.abs() <= clip) | (square >= moved_square), slope, 0.0)
        square = torch.maximum(square, moved_square)
    return 0.5 * square.mean(), slope / len(value)
