"""A Beta distribution on the bounds of each action dimension (Chou et al., "Improving Stochastic Policy Gradients in
Continuous Control with Deep Reinforcement Learning using the Beta Distribution", 2017)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from detent.config import HeadConfig
from detent.models.heads.base import Head
from detent.models.heads.bins import require_continuous
from detent.spec import ActionSpec


class BetaHead(Head):
    """A Beta distribution between the bounds, with one mode: alpha and beta are 1 + softplus of the network's outputs.

    Parameters are alpha and beta `[B, m, 2]`; a choice is the position between the bounds, in (0, 1). Densities,
    entropies and KL are those of the action, in its own units.
    """

    low: Tensor
    high: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__()
        require_continuous(action, "beta")
        low, high = torch.tensor(action.low), torch.tensor(action.high)
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.num_outputs = 2 * action.size

    @property
    def _log_range(self) -> Tensor:
        return (self.high - self.low).log()

    def forward(self, outputs: Tensor) -> Tensor:
        return 1 + softplus(outputs.unflatten(-1, (-1, 2)))

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        gamma = torch._standard_gamma(params, generator=generator)
        return _inside(gamma[..., 0] / gamma.sum(-1))

    def mode(self, params: Tensor) -> Tensor:
        alpha, beta = (params - 1).unbind(-1)
        # Where both are 1 to rounding, the distribution is uniform.
        total = alpha + beta
        return _inside(torch.where(total > 0, alpha / total.clamp(min=torch.finfo(total.dtype).tiny), 0.5))

    def mean_action(self, params: Tensor) -> Tensor:
        return self.to_action(params[..., 0] / params.sum(-1))

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        alpha, beta = params.unbind(-1)
        return (alpha - 1) * choice.log() + (beta - 1) * torch.log1p(-choice) - _log_beta(params) - self._log_range

    def entropy(self, params: Tensor) -> Tensor:
        alpha, beta = params.unbind(-1)
        total = alpha + beta
        return (
            _log_beta(params)
            - (alpha - 1) * alpha.digamma()
            - (beta - 1) * beta.digamma()
            + (total - 2) * total.digamma()
            + self._log_range
        )

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        change = old - new
        return (
            _log_beta(new) - _log_beta(old) + (change * old.digamma()).sum(-1) - change.sum(-1) * old.sum(-1).digamma()
        )

    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        # The Hessian of log B: trigamma of alpha and beta on the diagonal, less that of their sum in every entry.
        shared = torch.polygamma(1, params.sum(-1, keepdim=True)) * tangent.sum(-1, keepdim=True)
        return torch.polygamma(1, params) * tangent - shared

    def to_action(self, choice: Tensor) -> Tensor:
        return (self.low + (self.high - self.low) * choice).clamp(self.low, self.high)


def _inside(share: Tensor) -> Tensor:
    """Keep positions off 0 and 1, where a logarithm of the density is infinite; rounding can lead to either."""
    edge = torch.finfo(share.dtype).eps
    return share.clamp(edge, 1 - edge)


def _log_beta(params: Tensor) -> Tensor:
    return params.lgamma().sum(-1) - params.sum(-1).lgamma()
