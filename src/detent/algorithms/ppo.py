"""The clipped surrogate of proximal policy optimization (the paper's equation for L^PPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.algorithms.losses import Metrics
from detent.config import PPOConfig


class PPOLoss:
    """The loss -E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""

    def __init__(self, config: PPOConfig) -> None:
        self._clip = config.clip

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        ratio, gain, clipped = self._gains(log_ratio, advantages)
        clip_fraction = ((ratio.detach() - 1).abs() > self._clip).float().mean()
        return -torch.minimum(gain, clipped).mean(), {"clip_fraction": clip_fraction}

    def gradient(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        _, gain, clipped = self._gains(log_ratio, advantages)
        return torch.where(gain <= clipped, -gain, 0.0)

    def _gains(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ratio = log_ratio.exp()
        return ratio, ratio * advantages, ratio.clamp(1 - self._clip, 1 + self._clip) * advantages
