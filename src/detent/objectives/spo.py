"""Simple policy optimization: a quadratic penalty on the ratio instead of a clip."""

from __future__ import annotations

from torch import Tensor

from detent.config import SPOConfig
from detent.objectives.ppo import Metrics, PolicyLoss

MAX_LOG_RATIO = 20.0
"""Beyond it the squared ratio would come near the end of float32."""


def spo_loss(config: SPOConfig) -> PolicyLoss:
    """The loss -E[r A - |A| (r - 1)^2 / (2 eps)], least where r = 1 + eps sign(A)."""

    def loss(log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        penalty = advantages.abs() / (2 * config.epsilon) * (ratio - 1).square()
        outside = ((ratio.detach() - 1).abs() > config.epsilon).float().mean()
        return (penalty - ratio * advantages).mean(), {"clip_fraction": outside}

    return loss
