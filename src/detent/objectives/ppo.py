"""The clipped surrogate of proximal policy optimization (the paper's equation for L^PPO)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.config import PPOConfig

Metrics = dict[str, Tensor]
PolicyLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Metrics]]
"""Log-ratio `[B]` and advantages `[B]` to a loss, its gradient in the log-ratio `[B]`, and metrics.

The gradient in closed form spares the first-order loop autograd; tests hold it against autograd's."""


def ppo_loss(config: PPOConfig) -> PolicyLoss:
    """The loss -E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""

    def loss(log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        ratio = log_ratio.exp()
        gain = ratio * advantages
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip) * advantages
        surrogate = torch.minimum(gain, clipped).mean()
        with torch.no_grad():
            gradient = torch.where(gain <= clipped, gain, 0.0) / -len(gain)
            clip_fraction = ((ratio - 1).abs() > config.clip).float().mean()
        return -surrogate, gradient, {"clip_fraction": clip_fraction}

    return loss
