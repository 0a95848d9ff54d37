"""A Gaussian squashed into the action's bounds by tanh, the actor of SAC."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from detent.config import HeadConfig
from detent.models.heads.gaussian import GaussianHead
from detent.spec import ActionSpec

_NODES = 64
"""Nodes of the quadrature behind entropy and expected action."""


class SquashedGaussianHead(GaussianHead):
    """tanh of a Gaussian sample, scaled to the bounds; SAC's actor.

    A choice is the sample u before tanh, so that nothing is lost at the bounds. Log-probabilities are those of the
    action: log N(u) - log |d action / d u|. The KL is the Gaussians', since tanh loses nothing. Entropy and expected
    action have no closed form and are computed by Gauss-Hermite quadrature. As in SAC, the action of `mode` is tanh of
    the Gaussian's mean.
    """

    mean_is_mode = False
    _nodes: Tensor
    _weights: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__(action, config)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        self.register_buffer("_nodes", torch.tensor(nodes.tolist()), persistent=False)
        self.register_buffer("_weights", torch.tensor((weights / weights.sum()).tolist()), persistent=False)

    def _log_slope(self, choice: Tensor) -> Tensor:
        """Return log |d action / d u| for u `[..., m]`, finite however far out u is."""
        # 1 - tanh(u)^2 = 4 / (e^u + e^-u)^2
        return ((self.high - self.low) / 2).log() + 2 * (math.log(2) - choice - softplus(-2 * choice))

    def _expectation(self, values: Tensor) -> Tensor:
        """Return the expectation `[B, m]` of a function with these `values` at the quadrature's points."""
        return (values.movedim(0, -1) * self._weights).sum(-1)

    def _points(self, params: Tensor) -> Tensor:
        """Return the quadrature's points `[nodes, B, m]`."""
        mean, log_std = params.unbind(-1)
        return mean + log_std.exp() * self._nodes.view(-1, *(1,) * mean.dim())

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        return super().log_prob(params, choice) - self._log_slope(choice)

    def entropy(self, params: Tensor) -> Tensor:
        return super().entropy(params) + self._expectation(self._log_slope(self._points(params)))

    def mean_action(self, params: Tensor) -> Tensor:
        return self._expectation(self.to_action(self._points(params))).clamp(self.low, self.high)

    def statistics(self, entropy: Tensor) -> dict[str, Tensor]:
        # The base class reads the standard deviation from a Gaussian's entropy, which this is not.
        return {}

    def to_action(self, choice: Tensor) -> Tensor:
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return (centre + half * choice.tanh()).clamp(self.low, self.high)
