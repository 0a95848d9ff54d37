"""One softmax over evenly spaced bins per action dimension: the paper's actor."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import log_softmax

from detent.config import HeadConfig
from detent.models.heads.base import Head
from detent.spec import ActionSpec, bin_positions


class CategoricalHead(Head):
    """Parameters are log-probabilities `[B, m, K]`; a choice is a bin index."""

    bins: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__()
        self.register_buffer("bins", torch.from_numpy(bin_positions(action, config.bins)).float())
        self.num_outputs = self.bins.numel()
        self._choice_dtype = torch.uint8 if config.bins <= 256 else torch.int16

    def forward(self, outputs: Tensor) -> Tensor:
        return log_softmax(outputs.unflatten(-1, self.bins.shape), dim=-1)

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        # Inverse CDF: one uniform number per dimension instead of one per bin. Scaling by the last entry keeps the
        # point inside the distribution whatever the cumulative sum rounds to.
        cumulative = params.exp().cumsum(-1)
        uniform = torch.rand((*params.shape[:-1], 1), generator=generator, dtype=params.dtype, device=params.device)
        index = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
        return index.squeeze(-1).clamp_(max=params.shape[-1] - 1).to(self._choice_dtype)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1).to(self._choice_dtype)

    def mean_action(self, params: Tensor) -> Tensor:
        # Probabilities sum to 1 only up to rounding, which must not leave the Box.
        return (params.exp() * self.bins).sum(-1).clamp(self.bins[:, 0], self.bins[:, -1])

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        return params.gather(-1, choice.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return -(params.exp() * params).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return (old.exp() * (old - new)).sum(-1)

    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        # E[dl dl^T] in log-probabilities l is diag(p). A tangent of log-probabilities has sum(p u) = 0 by itself, so
        # through the log_softmax this is the logits' p (u - sum(p u)).
        return params.exp() * tangent

    def to_action(self, choice: Tensor) -> Tensor:
        dimensions = torch.arange(self.bins.shape[0], device=choice.device)
        return self.bins[dimensions, choice.long()]
