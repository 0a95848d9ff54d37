"""The interface of an action distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn

SAMPLES = 64
"""Choices drawn per state if a head has no exact KL or Fisher product."""


class Head(nn.Module, ABC):
    """A factorized action distribution over m dimensions, represented by its parameters `[B, m, P]`.

    A *choice* (elsewhere called raw action, or bin index) is what was sampled and what a rollout stores: bin indices
    for a categorical head, the unclipped sample for a Gaussian. `to_action` maps a choice to an action inside the Box;
    nothing ever maps an action back to a choice.

    A head is constructed with the action bounds and the `head` section of the configuration, and with its own `Options`
    if it defines a dataclass of that name. Only the abstract methods are required; the others have defaults that are
    correct for every head but slower than an exact form.
    """

    num_outputs: int
    """Number of outputs of the network's last layer."""
    output_gain = 0.01
    """Gain of that layer's orthogonal initialization."""
    mean_is_mode = False
    """Whether the expected action is the action of the most probable choice, so that nobody measures it twice."""
    has_mean = True
    """Whether actions have an expected value; that of a discrete space's actions is no action."""

    @abstractmethod
    def forward(self, outputs: Tensor) -> Tensor:
        """Map network outputs `[B, num_outputs]` to distribution parameters `[B, m, P]`."""

    @abstractmethod
    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """Sample a choice `[B, m]`."""

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
        """Map a choice to an action `[B, m]` inside the Box."""

    def mean_action(self, params: Tensor) -> Tensor:
        """Return the expected action `[B, m]`; by default the mean action of samples, always the same ones."""
        if self.mean_is_mode:
            return self.to_action(self.mode(params))
        return torch.stack([self.to_action(choice) for choice in self._samples(params)]).mean(0)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) of each dimension `[B, m]`; by default estimated from samples.

        The estimate E[r - 1 - log r] is unbiased and never negative, and is meant for the small steps of a trust
        region: far from `old`, its variance grows. The same `old` always gives the same samples.
        """
        estimates = []
        for choice in self._samples(old):
            log_ratio = self.log_prob(new, choice) - self.log_prob(old, choice)
            estimates.append(log_ratio.expm1() - log_ratio)
        return torch.stack(estimates).mean(0)

    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        """Return the Fisher matrix of each state's distribution times `tangent`, a change of its `params`, `[B, m, P]`.

        By default, this is E[g g^T] tangent over samples, with the score g from autograd. The same `params` always give
        the same samples, so that conjugate gradients see one matrix.
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
        """Return further scalars to log, computed from the entropy `[B, m]`."""
        return {}
