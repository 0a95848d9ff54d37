"""Logits from a fixed smooth basis over the bins: neighbouring bins learn together, however many there are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads.categorical import CategoricalHead
from detent.spec import ActionSpec


def cubic_spline_basis(count: int, rank: int, size: int) -> Tensor:
    """Return `[rank, size]`: uniform cubic B-splines at `count` evenly spaced points of [0, 1], then zeros.

    The splines add up to 1 at every point. Their centres are evenly spaced, the outermost one step outside of [0, 1].
    """
    points = torch.arange(count, dtype=torch.float64) / (count - 1)
    centres = torch.arange(rank, dtype=torch.float64) - 1
    distance = (points * (rank - 3) - centres[:, None]).abs()
    near = 2 / 3 - distance.square() + distance.pow(3) / 2
    far = (2 - distance).clamp(min=0).pow(3) / 6
    basis = torch.zeros(rank, size)
    basis[:, :count] = torch.where(distance < 1, near, far)
    return basis


class SmoothHead(CategoricalHead):
    """A softmax over bins whose logits are a smooth curve: cubic splines with as many coefficients as `rank`.

    A network output moves several neighbouring bins at once, so an action that was good raises the probability of
    actions close to it, and the number of parameters does not grow with the number of bins.
    """

    @dataclass(frozen=True)
    class Options:
        rank: int = 32
        """Coefficients of the curve per action dimension."""

        def __post_init__(self) -> None:
            if self.rank < 4:
                raise ConfigError(f"head.options.rank is {self.rank}; a cubic spline needs at least 4 coefficients")

    basis: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig, options: Options) -> None:
        super().__init__(action, config)
        self.num_outputs = action.size * options.rank
        size = max(self.counts)
        bases = [cubic_spline_basis(count, options.rank, size) for count in self.counts]
        # `[rank, K]` for all dimensions, or `[m, rank, K]` if they have different numbers of bins.
        self.register_buffer("basis", bases[0] if self._penalty is None else torch.stack(bases), persistent=False)

    def logits(self, outputs: Tensor) -> Tensor:
        coefficients = outputs.unflatten(-1, (len(self.counts), -1))
        if self.basis.dim() == 2:
            return torch.matmul(coefficients, self.basis)
        return self.masked(torch.matmul(coefficients.unsqueeze(-2), self.basis).squeeze(-2))

    def outputs_gradient(self, gradient: Tensor) -> Tensor:
        if self.basis.dim() == 2:
            return torch.matmul(gradient, self.basis.mT).flatten(start_dim=1)
        return torch.matmul(gradient.unsqueeze(-2), self.basis.mT).flatten(start_dim=1)
