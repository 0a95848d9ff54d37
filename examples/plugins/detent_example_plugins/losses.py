"""A policy loss: a function of log-ratios and advantages, differentiated by autograd."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


class KLPenaltyLoss:
    """The surrogate r A less a penalty on the sampled KL, r - 1 - log r."""

    @dataclass(frozen=True)
    class Options:
        beta: float = 1.0
        """Weight of the penalty."""

    def __init__(self, options: Options) -> None:
        self._beta = options.beta

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = log_ratio.exp()
        penalty = (ratio - 1 - log_ratio).mean()
        return self._beta * penalty - (ratio * advantages).mean(), {"penalty": penalty.detach()}
