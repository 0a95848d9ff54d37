"""The interface of an action distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn

SAMPLES = 64
"""Choices drawn per state where a head has no exact KL or Fisher product."""


class Head(nn.Module, ABC):
    """A factorized action distribution over m dimensions, worked on through its parameters `[B, m, P]`.

    A *choice* (others say raw action, or bin index) is what was drawn and what a rollout stores: bin indices for a
    categorical head, the unclipped sample for a Gaussian. `to_action` turns it into an action inside the Box; nothing
    ever maps an action back to a choice.

    A head is made of the action's bounds and the `head` section of the configuration, and of its own `Options` where it
    has a dataclass of that name. The abstract methods are all it needs; the others have defaults that are correct for
    every head and slower than an exact form.
    """

    num_outputs: int
    """Numbers per state that the network's last layer must give."""
    output_gain = 0.01
    """Scale of the orthogonal initialization of that layer."""

    @abstractmethod
    def forward(self, outputs: Tensor) -> Tensor:
        """Map network outputs `[B, num_outputs]` to distribution parameters `[B, m, P]`."""

    @abstractmethod
    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """Draw a choice `[B, m]`."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor:
        """Return the most probable choice `[B, m]`."""

    @abstractmethod
    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        """Return the log-probability (or log-density) of each dimension's choice `[B, m]`."""

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy of each dimension `[B, m]`."""

    @abstractmethod
    def to_action(self, choice: Tensor) -> Tensor:
        """Return the action `[B, m]` inside the Box that a choice stands for."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) of each dimension `[B, m]`; by default estimated from samples.

        The estimate E[r - 1 - log r] is never negative and has no bias, and is meant for the small steps of a trust
        region: far from `old` its variance grows. The samples are the same for the same `old`.
        """
        estimates = []
        for choice in self._samples(old):
            log_ratio = self.log_prob(new, choice) - self.log_prob(old, choice)
            estimates.append(log_ratio.expm1() - log_ratio)
        return torch.stack(estimates).mean(0)

    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        """Return the Fisher matrix of each state's distribution times `tangent`, a change of its `params`, `[B, m, P]`.

        By default E[g g^T] tangent over samples, with the score g from autograd; the samples are the same for the same
        `params`, so that conjugate gradients see one matrix.
        """
        products = []
        for choice in self._samples(params):
            with torch.enable_grad():
                leaf = params.detach().requires_grad_()
                (score,) = torch.autograd.grad(self.log_prob(leaf, choice).sum(), leaf)
            products.append(score * (score * tangent).sum(-1, keepdim=True))
        return torch.stack(products).mean(0)

    def _samples(self, params: Tensor) -> list[Tensor]:
        """Draw SAMPLES choices, always the same ones for the same parameters."""
        generator = torch.Generator(params.device).manual_seed(0)
        with torch.no_grad():
            return [self.sample(params.detach(), generator) for _ in range(SAMPLES)]

    def statistics(self, entropy: Tensor) -> dict[str, Tensor]:
        """Return further scalars worth logging that follow from the entropy `[B, m]`."""
        return {}
