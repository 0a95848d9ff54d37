"""What an action distribution must be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn


@dataclass(frozen=True)
class Likelihood:
    """What an update asks of a distribution about the choices that were made."""

    log_prob: Tensor
    """`[B, m]`."""
    entropy: Tensor
    """`[B, m]`."""
    backward: Callable[[Tensor], Tensor]
    """From `weights` `[B]` to the gradient of sum(weights * log_prob) in the network's outputs, to be called once; that
    in the head's own parameters is written to their `grad`."""


class Head(nn.Module, ABC):
    """A factorized action distribution over m dimensions, worked on through its parameters `[B, m, P]`.

    A *choice* is what was drawn and what a rollout stores: bin indices for a categorical head, the unclipped sample
    for a Gaussian. `to_action` turns it into an action inside the Box; nothing ever maps an action back to a choice.
    """

    num_outputs: int
    """Numbers per state that the network's last layer must give."""

    @abstractmethod
    def forward(self, outputs: Tensor) -> Tensor:
        """Network outputs `[B, num_outputs]` to distribution parameters `[B, m, P]`."""

    @abstractmethod
    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """A random choice `[B, m]`."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor:
        """The most probable choice `[B, m]`."""

    @abstractmethod
    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        """Log-probability (or log-density) of each dimension's choice `[B, m]`."""

    def draw(self, outputs: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """`sample` from the network's outputs, and its `log_prob`; a closed form is faster than this."""
        params = self(outputs)
        choice = self.sample(params, generator)
        return choice, self.log_prob(params, choice)

    def likelihood(self, outputs: Tensor, choice: Tensor) -> Likelihood:
        """`log_prob` and `entropy` from the network's outputs, with the way back; a closed form is faster than this."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            params = self(leaf)
            log_prob = self.log_prob(params, choice)

        def backward(weights: Tensor) -> Tensor:
            weights = weights[:, None].expand_as(log_prob)
            gradient, *own = torch.autograd.grad(log_prob, [leaf, *self.parameters()], weights)
            for parameter, own_gradient in zip(self.parameters(), own, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(own_gradient)
            return gradient

        return Likelihood(log_prob.detach(), self.entropy(params.detach()), backward)

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """Entropy of each dimension `[B, m]`."""

    @abstractmethod
    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) of each dimension `[B, m]`."""

    @abstractmethod
    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        """The Fisher matrix of each state's distribution times `tangent`, a change of its `params`, `[B, m, P]`."""

    def statistics(self, entropy: Tensor) -> dict[str, Tensor]:
        """Further numbers worth logging that the entropy `[B, m]` tells."""
        return {}

    @abstractmethod
    def to_action(self, choice: Tensor) -> Tensor:
        """The action `[B, m]` inside the Box that a choice stands for."""
