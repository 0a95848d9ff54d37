"""An action distribution: what is drawn, how probable it is, and the action it stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

import detent
from detent.config import HeadConfig
from detent.spec import ActionSpec


class LaplaceHead(detent.Head):
    """A Laplace distribution per action dimension, with one learned scale each."""

    low: Tensor
    high: Tensor

    @dataclass(frozen=True)
    class Options:
        log_scale: float = 0.0
        """Initial logarithm of the scale, in the units of the action."""

    def __init__(self, action: ActionSpec, config: HeadConfig, options: Options) -> None:
        super().__init__()
        self.num_outputs = action.size
        self.log_scale = nn.Parameter(torch.full((action.size,), options.log_scale))
        self.register_buffer("low", torch.tensor(action.low))
        self.register_buffer("high", torch.tensor(action.high))

    def forward(self, outputs: Tensor) -> Tensor:
        return torch.stack([outputs, self.log_scale.expand_as(outputs)], dim=-1)

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        location, log_scale = params.unbind(-1)
        uniform = torch.rand(location.shape, generator=generator, dtype=params.dtype, device=params.device) - 0.5
        size = -torch.log((1 - 2 * uniform.abs()).clamp(min=1e-7))
        return location + log_scale.exp() * uniform.sign() * size

    def mode(self, params: Tensor) -> Tensor:
        return params[..., 0]

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        location, log_scale = params.unbind(-1)
        return -(choice - location).abs() * (-log_scale).exp() - log_scale - math.log(2)

    def entropy(self, params: Tensor) -> Tensor:
        return 1 + math.log(2) + params[..., 1]

    def to_action(self, choice: Tensor) -> Tensor:
        return choice.clamp(self.low, self.high)
