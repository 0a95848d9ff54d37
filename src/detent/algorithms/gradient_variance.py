"""Variance and signal-to-noise ratio of the policy gradient over the minibatches of an update."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Group(Protocol):
    """Processes that share each minibatch, of which this is number `rank` of `size`."""

    size: int
    rank: int

    def shard(self, total: int) -> slice:
        """Return this process's part of `total` rows or numbers."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes of a few numbers `[n]`."""
        ...

    def barrier(self) -> None:
        """Wait until every process is here."""
        ...


class SingleProcess:
    """A group of one."""

    size, rank = 1, 0

    def shard(self, total: int) -> slice:
        return slice(0, total)

    def sum(self, values: Tensor) -> Tensor:
        return values

    def barrier(self) -> None: ...


def trace_of_covariance(squares: Tensor, square_of_sum: Tensor, count: int) -> Tensor:
    """Return the trace of the covariance of `count` vectors, from their summed squared norms and that of their sum."""
    return ((squares - square_of_sum / count) / (count - 1)).clamp(min=0.0)


def signal_to_noise(trace: Tensor, mean_square: Tensor, count: int) -> Tensor:
    """Return |E g|^2 / trace, from |mean of `count` gradients|^2, which is too large by trace / count on average."""
    return (mean_square - trace / count) / trace.clamp(min=1e-30)


class GradientVariance:
    """Moments of the policy gradient over the minibatches of one update, for one addition per minibatch.

    Within an epoch every minibatch is another sample of the same objective, though the parameters move a little from
    one to the next; `detent diagnose` measures the same at fixed parameters. Only the actor's own parameters count.
    The processes of a group hold the vectors in shards; what is small each of them knows wholly.
    """

    def __init__(self, shard: Tensor, size: int | None = None, group: Group | None = None) -> None:
        """`shard` has the shape of this process's part of the policy gradient, which is `size` numbers in all."""
        self._group, self._size = group or SingleProcess(), size or len(shard)
        self._sum, self._total = torch.zeros_like(shard), torch.zeros_like(shard)
        self._squares: list[Tensor] = []
        self._all_squares: list[Tensor] = []
        self._epochs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, shard: Tensor, square: Tensor) -> None:
        """Add a minibatch's policy gradient (this process's shard) and the squared norm of all of it, unclipped."""
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
        """Return averages over epochs; the authors' figure is over all minibatches of the update at once.

        `grad_variance` is the trace of the covariance, `grad_variance_normalized` that over |mean gradient|^2,
        `grad_snr` the reciprocal without the bias of |mean gradient|^2, `grad_variance_authors` the mean over
        coordinates of the variance over all minibatches of the update, as the released code of the paper has it.
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
