"""Fast forms of the built-in critics: the gradient of the value loss with respect to the critic network's outputs.

Looked up by exact type, because a subclass may interpret the same network outputs differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detent.models.critics.base import CriticHead
from detent.models.critics.categorical import CategoricalCritic
from detent.models.critics.hl_gauss import HLGaussCritic
from detent.models.critics.scalar import ScalarCritic, value_errors
from detent.models.critics.two_hot import TwoHotCritic


def autograd_gradient(critic: CriticHead, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
    """Differentiate any critic that has no parameters of its own, by autograd from the loss to the outputs."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        loss = len(leaf) * critic.loss(leaf, returns, old_value, clip)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def scalar_gradient(critic: ScalarCritic, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
    error, held = value_errors(critic.value(outputs), returns, old_value, clip)
    # Where the clipped value has the larger error, the loss does not depend on the value.
    return torch.where(error.abs() >= held.abs(), error, 0.0).unsqueeze(-1)


def categorical_gradient(
    critic: CategoricalCritic, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float
) -> Tensor:
    # The gradient of a cross-entropy.
    return outputs.softmax(-1) - critic.target(returns)


CRITIC_GRADIENTS: dict[type[CriticHead], Callable[[Any, Tensor, Tensor, Tensor, float], Tensor]] = {
    ScalarCritic: scalar_gradient,
    HLGaussCritic: categorical_gradient,
    TwoHotCritic: categorical_gradient,
}
"""Gradients `[B, num_outputs]` of the loss, summed over transitions, for the arguments of `CriticHead.loss`;
`CRITIC_GRADIENTS[MyCritic] = autograd_gradient` adds a plug-in."""
