"""The second moment E|g|^2 of a head's policy gradient in one state: exact, sampled, and by the paper's proposition.

With a constant return R, the gradient g = R grad log pi(a) has
E|g|^2 = R^2 sum_i 1 / sigma_i^2 for a Gaussian, with respect to its means, and
E|g|^2 = R^2 sum_i (1 - |p_i|^2) for a categorical policy, with respect to its logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.utils import vector_to_parameters

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.models.heads.base import Head
from detent.spec import ActionSpec


@dataclass(frozen=True)
class Actor:
    """A head in a single state; sums over `choices` `[S, m]` with `weights` `[S, m]` are expectations."""

    head: Head
    outputs: Tensor
    """Network outputs `[n]`: the logits of all dimensions, or the means."""
    total_return: float
    second_moment: float
    """E|g|^2 according to the proposition."""
    choices: Tensor
    weights: Tensor


def categorical_actor(logits: Tensor, total_return: float = 1.0) -> Actor:
    """Make an actor from logits `[m, K]`; its expectations are sums over the bins."""
    dimensions, bins = logits.shape
    head = _make_head(dimensions, HeadConfig(kind="categorical", bins=bins))
    choices = torch.arange(bins)[:, None].expand(bins, dimensions)
    second_moment = total_return**2 * categorical_closed_form(logits)
    return Actor(head, logits.flatten(), total_return, second_moment, choices, logits.softmax(-1).T)


def gaussian_actor(sigma: Tensor, total_return: float = 1.0) -> Actor:
    """Make an actor from standard deviations `[m]`, with means 0.

    Its expectations are Gauss-Hermite sums over three nodes, exact to degree 5; |g|^4 has degree 4 in the action.
    """
    head = _make_head(len(sigma), HeadConfig(kind="gaussian"))
    vector_to_parameters(sigma.log(), head.parameters())
    choices = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64) * math.sqrt(3) * sigma
    weights = torch.tensor([[1.0], [4.0], [1.0]], dtype=torch.float64) / 6
    second_moment = total_return**2 * gaussian_closed_form(sigma)
    return Actor(head, torch.zeros_like(sigma), total_return, second_moment, choices, weights.expand_as(choices))


def _make_head(dimensions: int, config: HeadConfig) -> Head:
    return make_head(ActionSpec((-1.0,) * dimensions, (1.0,) * dimensions), config).double().requires_grad_(False)


def gaussian_closed_form(sigma: Tensor) -> float:
    """Return the proposition's E|g|^2 / R^2 for standard deviations `[m]`."""
    return sigma.pow(-2).sum().item()


def categorical_closed_form(logits: Tensor) -> float:
    """Return the proposition's E|g|^2 / R^2 for logits `[m, K]`."""
    return (1 - logits.softmax(-1).square().sum(-1)).sum().item()


def squared_gradients(actor: Actor, choice: Tensor) -> Tensor:
    """Return |g|^2 of each dimension `[B, m]` for choices `[B, m]`, by automatic differentiation."""
    outputs = actor.outputs.expand(len(choice), -1).clone().requires_grad_()
    log_prob = actor.head.log_prob(actor.head(outputs), choice)
    (gradient,) = torch.autograd.grad(actor.total_return * log_prob.sum(), outputs)
    squares: Tensor = gradient.unflatten(-1, (choice.shape[-1], -1)).square().sum(-1)
    return squares


def exact_second_moment(actor: Actor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of each dimension's |g|^2, both `[m]`, without sampling."""
    squares = squared_gradients(actor, actor.choices)
    mean = (actor.weights * squares).sum(0)
    return mean, (actor.weights * (squares - mean).square()).sum(0)


def sampled_second_moment(actor: Actor, samples: int, generator: Generator) -> float:
    """Return the mean of |g|^2 over choices drawn from the head, in pieces that keep memory small."""
    rows = max(1, 1_000_000 // len(actor.outputs))
    total = 0.0
    for start in range(0, samples, rows):
        params = actor.head(actor.outputs.expand(min(rows, samples - start), -1))
        total += squared_gradients(actor, actor.head.sample(params, generator)).sum().item()
    return total / samples
