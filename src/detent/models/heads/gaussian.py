"""A diagonal Gaussian, the usual actor of continuous control."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from detent.config import HeadConfig
from detent.models.heads.base import Head
from detent.models.heads.bins import require_continuous
from detent.spec import ActionSpec

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class DiagonalGaussian(Head):
    """Parameters are mean and log standard deviation `[B, m, 2]`; a choice is the sample before clipping.

    Subclasses define what the network's outputs mean, in `forward`.
    """

    mean_is_mode = True
    low: Tensor
    high: Tensor

    def __init__(self, action: ActionSpec) -> None:
        super().__init__()
        require_continuous(action, "Gaussian")
        self.register_buffer("low", torch.tensor(action.low))
        self.register_buffer("high", torch.tensor(action.high))

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        mean, log_std = params.unbind(-1)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor) -> Tensor:
        return params[..., 0]

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        mean, log_std = params.unbind(-1)
        return log_density((choice - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor) -> Tensor:
        return params[..., 1] + 0.5 + HALF_LOG_TWO_PI

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        old_mean, old_log_std = old.unbind(-1)
        new_mean, new_log_std = new.unbind(-1)
        spread = (2 * (old_log_std - new_log_std)).exp()
        shift = ((old_mean - new_mean) * (-new_log_std).exp()).square()
        return new_log_std - old_log_std + 0.5 * (spread + shift - 1)

    def fisher_product(self, params: Tensor, tangent: Tensor) -> Tensor:
        mean, log_std = tangent.unbind(-1)
        return torch.stack([mean * (-2 * params[..., 1]).exp(), 2 * log_std], dim=-1)

    def statistics(self, entropy: Tensor) -> dict[str, Tensor]:
        return {"std": (entropy.detach() - 0.5 - HALF_LOG_TWO_PI).exp().mean()}

    def to_action(self, choice: Tensor) -> Tensor:
        return choice.clamp(self.low, self.high)


class GaussianHead(DiagonalGaussian):
    """A Gaussian whose mean, and log standard deviation if state-dependent, come from the network.

    A state-dependent log standard deviation is clamped to its bounds and has no gradient beyond them.
    """

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__(action)
        self.squash = config.mean == "squashed"
        self._log_std_init = config.log_std_init
        self._log_std_bounds = config.log_std_min, config.log_std_max
        if config.log_std == "state-dependent":
            self.num_outputs = 2 * action.size
            self.log_std = None
        else:
            self.num_outputs = action.size
            self.log_std = nn.Parameter(torch.full((action.size,), config.log_std_init))

    def forward(self, outputs: Tensor) -> Tensor:
        if self.log_std is None:
            mean, log_std = outputs.chunk(2, dim=-1)
            log_std = (log_std + self._log_std_init).clamp(*self._log_std_bounds)
        else:
            mean, log_std = outputs, self.log_std.expand_as(outputs)
        if self.squash:
            mean = (self.high + self.low) / 2 + (self.high - self.low) / 2 * mean.tanh()
        return torch.stack([mean, log_std], dim=-1)


def log_density(z: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of a normal distribution, `z` standard deviations from its mean."""
    return torch.addcmul(-HALF_LOG_TWO_PI - log_std, z, z, value=-0.5)
