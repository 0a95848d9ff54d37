"""Running statistics of observations (part of the policy) and of returns (part of the trainer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of everything merged so far, exact in float64 whatever the batch sizes (Chan et al.)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def merge(self, batch: Tensor) -> None:
        """Add the rows of `batch` `[B, size]`."""
        batch = batch.double()
        batch_var, batch_mean = torch.var_mean(batch, dim=0, correction=0)
        total = self.count + batch.shape[0]
        share = batch.shape[0] / total
        shift = batch_mean - self.mean
        self.var.copy_(self.var * (1 - share) + batch_var * share + shift.square() * share * (1 - share))
        self.mean.add_(shift * share)
        self.count.copy_(total)


class ObservationNormalizer(RunningMoments):
    """Shifts and scales state vectors to mean 0 and variance 1, then clips; only `merge` changes the statistics."""

    shift: Tensor
    scale: Tensor

    def __init__(self, size: int, clip: float) -> None:
        super().__init__(size)
        self.clip = clip
        # Float32 copies for the hot loop.
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def merge(self, batch: Tensor) -> None:
        super().merge(batch)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + _EPSILON).rsqrt())

    def forward(self, state: Tensor) -> Tensor:
        return ((state - self.shift) * self.scale).clamp(-self.clip, self.clip)


class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, estimated over all environments.

    The statistics are updated with a whole rollout, whose rewards are then scaled with the result.
    """

    running: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.moments = RunningMoments(1)
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))

    def forget_episodes(self) -> None:
        """Reset the discounted returns after the environments were rebuilt."""
        self.running.zero_()

    def forward(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Update the statistics and return scaled rewards `[T, N]`; `ended` `[T, N]` marks the ends of episodes."""
        self.update(reward, ended)
        return self.scale(reward)

    def update(self, reward: Tensor, ended: Tensor) -> None:
        """Merge the discounted returns of a rollout into the statistics."""
        returns = torch.empty(reward.shape, dtype=torch.float64, device=reward.device)
        going_on = (~ended).double()
        for t, step_reward in enumerate(reward.double()):
            torch.add(step_reward, self.running, alpha=self.gamma, out=returns[t])
            torch.mul(returns[t], going_on[t], out=self.running)
        self.moments.merge(returns.reshape(-1, 1))

    def scale(self, reward: Tensor) -> Tensor:
        """Scale rewards with the current statistics."""
        scale = (self.moments.var + _EPSILON).rsqrt().to(reward.dtype)
        return (reward * scale).clamp(-self.clip, self.clip)
