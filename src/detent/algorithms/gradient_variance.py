"""Variance and signal-to-noise ratio of the policy gradient over the minibatches of an update."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Group(Protocol):
    """Processes that share each minibatch; this one has number `rank` of `size`."""

    size: int
    rank: int

    def shard(self, total: int) -> slice:
        """Return this process's slice of `total` rows or numbers."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes of a few numbers `[n]`."""
        ...

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        ...


class SingleProcess:
    """A group of one process."""

    size, rank = 1, 0

    def shard(self, total: int) -> slice:
        return slice(0, total)

    def sum(self, values: Tensor) -> Tensor:
        return values

    def barrier(self) -> None: ...


def trace_of_covariance(squares: Tensor, square_of_sum: Tensor, count: int) -> Tensor:
    """Return the trace of the covariance of `count` vectors, given their summed squared norms and |their sum|^2."""
    return ((squares - square_of_sum / count) / (count - 1)).clamp(min=0.0)


def signal_to_noise(trace: Tensor, mean_square: Tensor, count: int) -> Tensor:
    """Return |E g|^2 / trace, correcting |mean of `count` gradients|^2 for its bias of trace / count."""
    return (mean_square - trace / count) / trace.clamp(min=1e-30)


class GradientVariance:
    """Moments of the policy gradient over the minibatches of one update, at the cost of one addition per minibatch.

    Within an epoch, every minibatch is another sample of the same objective, although the parameters move a little in
    between; `detent diagnose` measures the same at fixed parameters. Only the actor's own parameters count. The
    processes of a group hold vectors in shards and scalars in full.
    """

    def __init__(self, shard: Tensor, size: int | None = None, group: Group | None = None) -> None:
        """Allocate sums shaped like `shard`, this process's part of a policy gradient of `size` numbers."""
        self._group, self._size = group or SingleProcess(), size or len(shard)
        self._sum, self._total = torch.zeros_like(shard), torch.zeros_like(shard)
        self._squares: list[Tensor] = []
        self._all_squares: list[Tensor] = []
        self._epochs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, shard: Tensor, square: Tensor) -> None:
        """Add this process's shard of a minibatch's unclipped policy gradient, and the full gradient's squared norm."""
        self._sum.add_(shard)
        self._squares.append(square)

    def end_epoch(self) -> None:
        count = len(self._squares)
        if count > 1:
            square_of_sum = self._group.sum(self._sum.dot(self._sum)[None])[0]
            trace = trace_of_covariance(torch.stack(self._squares).sum(), square_of_sum, count)
            mean_square = square_of_sum / count**2
            self._epochs.append((trace, mean_square, signal_to_noise(trace, mean_square, count)))
        self._total.add_(self._sum)
        self._sum.zero_()
        self._all_squares += self._squares
        self._squares = []

    def metrics(self) -> dict[str, Tensor]:
        """Return metrics averaged over epochs, except the authors', which covers all minibatches of the update at once.

        `grad_variance` is the trace of the covariance; `grad_variance_normalized` divides it by |mean gradient|^2;
        `grad_snr` is the reciprocal, corrected for the bias of |mean gradient|^2; `grad_variance_authors` is the
        variance over all minibatches of the update, averaged over coordinates, as in the paper's released code.
        """
        squares = torch.stack(self._all_squares)
        out = {"policy_grad_norm": squares.sqrt().mean()}
        if self._epochs:
            trace, mean_square, snr = (torch.stack(column).mean() for column in zip(*self._epochs, strict=True))
            square_of_total = self._group.sum(self._total.dot(self._total)[None])[0]
            authors = trace_of_covariance(squares.sum(), square_of_total, len(squares)) / self._size
            out |= {
                "grad_variance": trace,
                "grad_variance_normalized": trace / mean_square.clamp(min=1e-30),
                "grad_snr": snr,
                "grad_variance_authors": authors,
            }
        return out
