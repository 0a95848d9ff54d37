"""One softmax over bins per action dimension: the paper's actor."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import log_softmax, pad

from detent.config import HeadConfig
from detent.models.heads.base import Head
from detent.models.heads.bins import bin_buffer, bin_counts
from detent.spec import ActionSpec

IMPOSSIBLE = -1e9
"""The logit of a bin that a dimension does not have: probability 0, and finite, so that 0 times it is 0."""


class CategoricalHead(Head):
    """A softmax over bins per dimension, the paper's actor.

    Parameters are log-probabilities `[B, m, K]`; a choice is a bin index. If the dimensions have different numbers of
    bins, K is the largest. Other heads over bins derive from this one: they only compute the logits differently.
    """

    bins: Tensor
    _slots: Tensor | None
    _penalty: Tensor | None

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__()
        self.counts = bin_counts(action, config)
        self.has_mean = not action.discrete
        self.register_buffer("bins", bin_buffer(action, config))
        self.num_outputs = sum(self.counts)
        self._choice_dtype = torch.uint8 if max(self.counts) <= 256 else torch.int16
        missing = torch.arange(max(self.counts)) >= torch.tensor(self.counts)[:, None]
        equal = not bool(missing.any())
        # Where each bin's logit is among the outputs; bins that a dimension does not have take the entry after them.
        slots = torch.full(missing.shape, self.num_outputs)
        slots[~missing] = torch.arange(self.num_outputs)
        self.register_buffer("_slots", None if equal else slots, persistent=False)
        penalty = torch.where(missing, IMPOSSIBLE, 0.0)
        self.register_buffer("_penalty", None if equal else penalty, persistent=False)

    def logits(self, outputs: Tensor) -> Tensor:
        """Map network outputs `[B, num_outputs]` to logits `[B, m, K]`."""
        logits: Tensor
        if self._slots is None:
            logits = outputs.unflatten(-1, self.bins.shape)
        else:
            logits = pad(outputs, (0, 1), value=IMPOSSIBLE)[..., self._slots]
        return logits

    def outputs_gradient(self, gradient: Tensor) -> Tensor:
        """Map a gradient with respect to the logits `[B, m, K]` to the outputs' `[B, num_outputs]`."""
        if self._penalty is None:
            return gradient.flatten(start_dim=1)
        own: Tensor = gradient[:, self._penalty == 0]
        return own

    def masked(self, logits: Tensor) -> Tensor:
        """Return logits `[B, m, K]` without the bins that a dimension does not have."""
        return logits if self._penalty is None else logits + self._penalty

    def forward(self, outputs: Tensor) -> Tensor:
        return log_softmax(self.logits(outputs), dim=-1)

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
