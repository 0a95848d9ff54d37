"""Variance and signal-to-noise ratio of the policy gradient over the minibatches of an update."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

PAIR_INTERVAL = 8
"""Minibatches from one pair of compared neighbours to the next: the vectors are too large to compare all of them."""


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
    """Moments of the policy gradient over the minibatches of one update.

    The cost per minibatch is an addition; where parameters move, a copy and a product in `PAIR_INTERVAL` more. Within
    an epoch, every minibatch is another sample of the same objective, although the parameters move in between; `detent
    diagnose` measures the same at fixed parameters. Only the actor's own parameters count. The processes of a group
    hold vectors in shards and scalars in full.
    """

    def __init__(
        self, shard: Tensor, size: int | None = None, group: Group | None = None, parameters_move: bool = True
    ) -> None:
        """Allocate sums shaped like `shard`, this process's part of a policy gradient of `size` numbers.

        If `parameters_move` between minibatches, neighbours are compared as well, for `grad_snr_local`.
        """
        self._group, self._size = group or SingleProcess(), size or len(shard)
        self._sum, self._total = torch.zeros_like(shard), torch.zeros_like(shard)
        self._first_of_pair = torch.zeros_like(shard) if parameters_move else None
        self._products: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._all_squares: list[Tensor] = []
        self._epochs: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, shard: Tensor, square: Tensor) -> None:
        """Add this process's shard of a minibatch's unclipped policy gradient, and the full gradient's squared norm."""
        self._sum.add_(shard)
        if self._first_of_pair is not None:
            place = len(self._squares) % PAIR_INTERVAL
            if place == 0:
                self._first_of_pair.copy_(shard)
            elif place == 1:
                self._products.append(self._first_of_pair.dot(shard))
        self._squares.append(square)

    def end_epoch(self) -> None:
        count = len(self._squares)
        if count > 1:
            squares = torch.stack(self._squares)
            product = torch.stack(self._products).sum() if self._products else squares.new_zeros(())
            square_of_sum, product = self._group.sum(torch.stack([self._sum.dot(self._sum), product]))
            trace = trace_of_covariance(squares.sum(), square_of_sum, count)
            mean_square = square_of_sum / count**2
            ratio = mean_square / trace.clamp(min=1e-30)
            self._epochs.append((trace, mean_square, signal_to_noise(trace, mean_square, count), ratio))
            # Of a pair, |b - a|^2 / 2 is half of |a|^2 + |b|^2 less a.b; a first at the end of the epoch has no second.
            paired = squares[: count - 1 : PAIR_INTERVAL].sum() + squares[1::PAIR_INTERVAL].sum()
            self._pairs.append((product, paired / 2 - product))
        self._total.add_(self._sum)
        self._sum.zero_()
        self._all_squares += self._squares
        self._squares, self._products = [], []

    def metrics(self) -> dict[str, Tensor]:
        """Return metrics averaged over epochs, except the authors', which covers all minibatches of the update at once.

        `grad_variance` is the trace of the covariance; `grad_variance_normalized` divides it by |mean gradient|^2;
        `grad_snr` is the reciprocal, corrected for the bias of |mean gradient|^2, and `grad_snr_paper` without the
        correction; `grad_variance_authors` is the variance over all minibatches of the update, averaged over
        coordinates, as in the paper's released code.

        `grad_snr_local` is the signal-to-noise ratio while parameters move: the sum over pairs of neighbouring
        minibatches of g.g' over that of |g' - g|^2 / 2. A drift of the expected gradient during an epoch counts as
        noise in the others; between neighbours it is one step long. It is a ratio of sums, less biased than a mean of
        ratios.
        """
        squares = torch.stack(self._all_squares)
        out = {"policy_grad_norm": squares.sqrt().mean()}
        if self._epochs:
            trace, mean_square, snr, ratio = (torch.stack(column).mean() for column in zip(*self._epochs, strict=True))
            square_of_total = self._group.sum(self._total.dot(self._total)[None])[0]
            authors = trace_of_covariance(squares.sum(), square_of_total, len(squares)) / self._size
            out |= {
                "grad_variance": trace,
                "grad_variance_normalized": trace / mean_square.clamp(min=1e-30),
                "grad_snr": snr,
                "grad_snr_paper": ratio,
                "grad_variance_authors": authors,
            }
        if self._epochs and self._first_of_pair is not None:
            signal, noise = (torch.stack(column).sum() for column in zip(*self._pairs, strict=True))
            out["grad_snr_local"] = signal / noise.clamp(min=1e-30)
        return out
