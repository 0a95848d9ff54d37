"""The clipped surrogate of proximal policy optimization (the paper's equation for L^PPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.algorithms.losses import Metrics
from detent.config import PPOConfig


class PPOLoss:
    """The loss -E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""

    def __init__(self, config: PPOConfig) -> None:
        self.clip = config.clip

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        ratio, gain, clipped = self.gains(log_ratio, advantages)
        clip_fraction = ((ratio.detach() - 1).abs() > self.clip).float().mean()
        return -torch.minimum(gain, clipped).mean(), {"clip_fraction": clip_fraction}

    def gains(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ratio `[B]`, r A and clip(r) A."""
        ratio = log_ratio.exp()
        return ratio, ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages
