"""What the gradients of minibatches tell: how far they scatter, and how much of them is signal."""

from __future__ import annotations

import torch
from torch import Tensor


def trace_of_covariance(squares: Tensor, total: Tensor, count: int) -> Tensor:
    """Trace of the sample covariance of `count` vectors, from the sum of their squared norms and their sum `[P]`."""
    return ((squares - total.dot(total) / count) / (count - 1)).clamp(min=0.0)


def signal_to_noise(trace: Tensor, mean_square: Tensor, count: int) -> Tensor:
    """|E g|^2 / trace, from |mean of `count` gradients|^2, which is too large by trace / count on average."""
    return (mean_square - trace / count) / trace.clamp(min=1e-30)


class GradientSpread:
    """Moments of the policy gradient over the minibatches of one update, for one addition per minibatch.

    Within an epoch every minibatch is another sample of the same objective, though the parameters move a little from
    one to the next; `detent diagnose` measures the same at fixed parameters. Only the actor's own parameters count.
    """

    def __init__(self, like: Tensor) -> None:
        """`like` `[P]` has the shape of the policy gradient."""
        self._sum, self._total = torch.zeros_like(like), torch.zeros_like(like)
        self.reset()

    def reset(self) -> None:
        """Start a new update."""
        self._sum.zero_()
        self._total.zero_()
        self._squares = self._norms = self._all_squares = self._sum.new_zeros(())
        self._count = self._all_count = 0
        self._epochs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, gradient: Tensor, norm: Tensor) -> None:
        """One minibatch's policy gradient `[P]` and its norm, before clipping."""
        self._sum.add_(gradient)
        self._squares = self._squares + norm * norm
        self._norms = self._norms + norm
        self._count += 1

    def end_epoch(self) -> None:
        if self._count > 1:
            trace = trace_of_covariance(self._squares, self._sum, self._count)
            mean_square = self._sum.dot(self._sum) / self._count**2
            self._epochs.append((trace, mean_square, signal_to_noise(trace, mean_square, self._count)))
        self._total.add_(self._sum)
        self._all_squares = self._all_squares + self._squares
        self._all_count += self._count
        self._sum.zero_()
        self._squares = self._squares.new_zeros(())
        self._count = 0

    def metrics(self) -> dict[str, Tensor]:
        """Averages over epochs; the authors' figure is over all minibatches of the update at once.

        `grad_variance` is the trace of the covariance, `grad_variance_normalized` that over |mean gradient|^2,
        `grad_snr` the reciprocal without the bias of |mean gradient|^2, `grad_variance_authors` the mean over
        coordinates of the variance over all minibatches of the update, as the released code of the paper has it.
        """
        out = {"policy_grad_norm": self._norms / max(1, self._all_count)}
        if self._epochs:
            trace, mean_square, snr = (torch.stack(column).mean() for column in zip(*self._epochs, strict=True))
            authors = trace_of_covariance(self._all_squares, self._total, self._all_count) / self._total.numel()
            out |= {
                "grad_variance": trace,
                "grad_variance_normalized": trace / mean_square.clamp(min=1e-30),
                "grad_snr": snr,
                "grad_variance_authors": authors,
            }
        return out
