"""Fast forms of the built-in heads and losses: sampling choices, log-probabilities and their gradients.

Looked up by exact type, because a subclass may interpret the same network outputs differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from detent.algorithms.ppo import PPOLoss
from detent.algorithms.spo import MAX_LOG_RATIO, SPOLoss, bounded_ratio
from detent.models.heads.base import Head
from detent.models.heads.beta import BetaHead
from detent.models.heads.categorical import CategoricalHead
from detent.models.heads.coarse_fine import CoarseFineHead
from detent.models.heads.gaussian import HALF_LOG_TWO_PI, GaussianHead, log_density
from detent.models.heads.loss_swap import LossSwapHead
from detent.models.heads.ordinal import OrdinalHead
from detent.models.heads.smooth import SmoothHead
from detent.models.heads.squashed_gaussian import SquashedGaussianHead
from detent.models.heads.unimodal import UnimodalHead


@dataclass(frozen=True)
class Likelihood:
    """What an update needs from an action distribution, evaluated at the stored choices."""

    log_prob: Tensor
    """`[B, m]`."""
    entropy: Tensor
    """`[B, m]`."""
    backward: Callable[[Tensor], Tensor]
    """Maps `weights` `[B]` to the gradient of sum(weights * log_prob) with respect to the network's outputs, and writes
    the gradient of the head's own parameters to their `grad`; may be called once."""


def autograd_likelihood(head: Head, outputs: Tensor, choice: Tensor) -> Likelihood:
    """Evaluate any head, with autograd from the log-probabilities back to the network's outputs."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        params = head(leaf)
        log_prob = head.log_prob(params, choice)

    def backward(weights: Tensor) -> Tensor:
        weights = weights[:, None].expand_as(log_prob)
        gradient, *own = torch.autograd.grad(log_prob, [leaf, *head.parameters()], weights)
        for parameter, own_gradient in zip(head.parameters(), own, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(own_gradient)
        return gradient

    return Likelihood(log_prob.detach(), head.entropy(params.detach()), backward)


def categorical_likelihood(head: CategoricalHead, outputs: Tensor, choice: Tensor) -> Likelihood:
    params, index = head(outputs), choice.long().unsqueeze(-1)
    probability = params.exp()

    def backward(weights: Tensor) -> Tensor:
        # The gradient of a weighted cross-entropy: w (onehot - p).
        weights = weights[:, None, None]
        gradient: Tensor = probability.mul_(-weights)
        return head.outputs_gradient(gradient.scatter_add_(-1, index, weights.expand_as(index)))

    log_prob = params.gather(-1, index).squeeze(-1)
    return Likelihood(log_prob, -(probability * params).sum(-1), backward)


def gaussian_likelihood(head: GaussianHead, outputs: Tensor, choice: Tensor) -> Likelihood:
    log_std = head.log_std
    if head.squash or log_std is None:
        return autograd_likelihood(head, outputs, choice)
    precision = (-log_std).exp()
    z = (choice - outputs) * precision

    def backward(weights: Tensor) -> Tensor:
        # The gradient of a weighted squared error: w z / sigma for the mean, w (z^2 - 1) for log sigma.
        weights = weights[:, None]
        weighted = weights * z
        torch.sum(weighted * z - weights, 0, out=log_std.grad)
        return weighted * precision

    entropy = log_std + (0.5 + HALF_LOG_TWO_PI)
    return Likelihood(log_density(z, log_std), entropy.expand_as(z), backward)


LIKELIHOODS: dict[type[Head], Callable[[Any, Tensor, Tensor], Likelihood]] = {
    CategoricalHead: categorical_likelihood,
    OrdinalHead: categorical_likelihood,
    SmoothHead: categorical_likelihood,
    UnimodalHead: autograd_likelihood,
    CoarseFineHead: autograd_likelihood,
    GaussianHead: gaussian_likelihood,
    SquashedGaussianHead: autograd_likelihood,
    BetaHead: autograd_likelihood,
    LossSwapHead: autograd_likelihood,
}
"""Heads that the accelerated engine supports; `LIKELIHOODS[MyHead] = autograd_likelihood` adds a plug-in."""


def draw(head: Head, outputs: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Sample a choice `[B, m]` from the network's outputs; return it and its log-probability `[B, m]`."""
    if type(head) is GaussianHead and head.log_std is not None and not head.squash:
        log_std = head.log_std
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
        choice = torch.addcmul(outputs, log_std.exp(), noise)
        return choice, log_density((choice - outputs) * (-log_std).exp(), log_std)
    params = head(outputs)
    choice = head.sample(params, generator)
    return choice, head.log_prob(params, choice)


def ppo_gradient(loss: PPOLoss, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    _, gain, clipped = loss.gains(log_ratio, advantages)
    return torch.where(gain <= clipped, -gain, 0.0)


def spo_gradient(loss: SPOLoss, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    ratio = bounded_ratio(log_ratio)
    slope = ratio * (advantages.abs() / loss.epsilon * (ratio - 1) - advantages)
    return torch.where(log_ratio.abs() <= MAX_LOG_RATIO, slope, 0.0)


LOSS_GRADIENTS: dict[type, Callable[[Any, Tensor, Tensor], Tensor]] = {PPOLoss: ppo_gradient, SPOLoss: spo_gradient}
"""Gradients `[B]` of the loss, summed over transitions, with respect to the log-ratios `[B]`."""
