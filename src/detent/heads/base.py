"""What an action distribution must be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn


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

    def log_prob_backward(self, outputs: Tensor, params: Tensor, choice: Tensor, weights: Tensor) -> Tensor:
        """Gradient of sum(weights * log_prob) in the network's `outputs` `[B, num_outputs]`, whose `params` are given.

        `weights` is `[B]`; the gradient in the head's own parameters is written to their `grad`. A closed form is
        faster than this.
        """
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            total = (weights[:, None] * self.log_prob(self(leaf), choice)).sum()
        gradient, *own = torch.autograd.grad(total, [leaf, *self.parameters()])
        for parameter, own_gradient in zip(self.parameters(), own, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(own_gradient)
        return gradient

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """Entropy of each dimension `[B, m]`."""

    @abstractmethod
    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) of each dimension `[B, m]`."""

    @abstractmethod
    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        """The Fisher matrix of each state's distribution times `tangent`, a change of its `params`, `[B, m, P]`."""

    def statistics(self, params: Tensor) -> dict[str, Tensor]:
        """Further numbers worth logging, besides the entropy."""
        return {}

    @abstractmethod
    def to_action(self, choice: Tensor) -> Tensor:
        """The action `[B, m]` inside the Box that a choice stands for."""
