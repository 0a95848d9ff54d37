"""Two-hot: classification with targets on the two bins around the return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from detent.config import CriticConfig
from detent.models.critics.categorical import CategoricalCritic, require_support


class TwoHotCritic(CategoricalCritic):
    """Classification over exponentially spaced bins, with the two bins around the return as target (symexp two-hot).

    Hafner et al., DreamerV3, in its current form: the bins are symexp of an even grid, targets and values are in the
    units of the return. Earlier versions put even bins on symlog(return) and took symexp of the expectation, which is
    biased by the noise of returns.
    """

    @dataclass(frozen=True)
    class Options:
        low: float = -100.0
        """Lowest bin, in the units of the (normalized) return."""
        high: float = 100.0
        """Highest bin."""
        bins: int = 101
        """Number of bins, dense around 0 and sparse towards the ends."""

        def __post_init__(self) -> None:
            require_support(self.low, self.high, self.bins)

    def __init__(self, config: CriticConfig, options: Options) -> None:
        ends = symlog(torch.tensor([options.low, options.high], dtype=torch.float64))
        grid = torch.linspace(float(ends[0]), float(ends[1]), options.bins, dtype=torch.float64)
        super().__init__((options.low, options.high), symexp(grid))

    def project(self, returns: Tensor) -> Tensor:
        upper = torch.bucketize(returns, self.bins).clamp(1, self.num_outputs - 1)[:, None]
        lower = upper - 1
        below, above = self.bins[lower], self.bins[upper]
        weight = (returns[:, None] - below) / (above - below)
        target = returns.new_zeros(len(returns), self.num_outputs)
        return target.scatter_(-1, lower, 1 - weight).scatter_(-1, upper, weight)


def symlog(values: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|)."""
    return values.sign() * values.abs().log1p()


def symexp(values: Tensor) -> Tensor:
    """Return sign(x) (exp|x| - 1), the inverse of `symlog`."""
    return values.sign() * values.abs().expm1()
