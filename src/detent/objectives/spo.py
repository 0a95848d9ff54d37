"""Simple policy optimization: a quadratic penalty on the ratio instead of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.config import SPOConfig
from detent.objectives.ppo import Metrics, PolicyLoss

MAX_LOG_RATIO = 20.0
"""Beyond it the squared ratio would come near the end of float32."""


def spo_loss(config: SPOConfig) -> PolicyLoss:
    """The loss -E[r A - |A| (r - 1)^2 / (2 eps)], least where r = 1 + eps sign(A)."""

    def loss(log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        weight = advantages.abs() / config.epsilon
        mean = (0.5 * weight * (ratio - 1).square() - ratio * advantages).mean()
        with torch.no_grad():
            slope = ratio * (weight * (ratio - 1) - advantages) / len(ratio)
            gradient = torch.where(log_ratio.abs() <= MAX_LOG_RATIO, slope, 0.0)
            outside = ((ratio - 1).abs() > config.epsilon).float().mean()
        return mean, gradient, {"clip_fraction": outside}

    return loss
