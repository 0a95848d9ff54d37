"""Simple policy optimization: a quadratic penalty on the ratio instead of a clip."""

from __future__ import annotations

from torch import Tensor

from detent.algorithms.losses import Metrics
from detent.config import SPOConfig

MAX_LOG_RATIO = 20.0
"""Beyond this bound, the squared ratio would come close to overflowing float32."""


class SPOLoss:
    """The loss -E[r A - |A| (r - 1)^2 / (2 eps)], minimal at r = 1 + eps sign(A)."""

    def __init__(self, config: SPOConfig) -> None:
        self.epsilon = config.epsilon

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        ratio = bounded_ratio(log_ratio)
        penalty = 0.5 * advantages.abs() / self.epsilon * (ratio - 1).square()
        outside = ((ratio.detach() - 1).abs() > self.epsilon).float().mean()
        return (penalty - ratio * advantages).mean(), {"clip_fraction": outside}


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
