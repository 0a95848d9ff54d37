"""The clipped surrogate of proximal policy optimization (the paper's equation for L^PPO)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.config import PPOConfig

Metrics = dict[str, Tensor]
PolicyLoss = Callable[[Tensor, Tensor], tuple[Tensor, Metrics]]
"""Log-ratio `[B]` and advantages `[B]` to a loss and metrics; what the first-order loop minimizes."""


def ppo_loss(config: PPOConfig) -> PolicyLoss:
    """The loss -E[min(r A, clip(r, 1 - eps, 1 + eps) A)]."""

    def loss(log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages).mean()
        clip_fraction = ((ratio.detach() - 1).abs() > config.clip).float().mean()
        return -surrogate, {"clip_fraction": clip_fraction}

    return loss
