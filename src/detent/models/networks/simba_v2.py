"""SimBa v2 (Lee et al. 2025, "Hyperspherical Normalization for Scalable Deep Reinforcement Learning", 2502.15280).

Features and the weight vector of every unit lie on the unit sphere, so that neither can grow while training goes on;
what magnitudes the network needs, its scalers learn. There are no biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from detent.config import NetworkConfig
from detent.errors import ConfigError

EPS = 1e-8
"""Keeps vectors off zero, where they have no direction."""
_EXPANSION = 4
"""How many times a block widens inside."""


class HypersphericalLinear(nn.Module):
    """A linear layer without bias whose rows, the weight vectors of its units, have norm 1.

    The forward pass divides by the norms, so whoever moves the weights (Adam, a line search, a user) cannot leave the
    sphere, and gradients are tangent to it. `after_step` also stores the weights with norm 1: this changes no output,
    but keeps a step of a given length from turning ever longer weights ever less.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.orthogonal_(self.weight)
        self.after_step()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = linear(inputs, self.weight) / torch.linalg.vector_norm(self.weight, dim=1)
        return outputs

    @torch.no_grad()
    def after_step(self) -> None:
        """Project the weights onto the sphere."""
        self.weight.div_(torch.linalg.vector_norm(self.weight, dim=1, keepdim=True))


class Scaler(nn.Module):
    """Multiplies each feature by a learned number that starts at `init`.

    The parameter starts at `scale`, and a step of the optimizer changes the number by `init / scale` times its length.
    """

    def __init__(self, width: int, init: float, scale: float) -> None:
        super().__init__()
        self.scaler = nn.Parameter(torch.full((width,), scale))
        self.factor = init / scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scaler * self.factor * inputs


class LERPBlock(nn.Module):
    """Moves features on the sphere a learned part `alpha` of the way to where an MLP sends them."""

    def __init__(self, width: int, scaler: tuple[float, float], alpha: tuple[float, float]) -> None:
        """Take `init` and `scale` of the MLP's scaler and of alpha."""
        super().__init__()
        init, scale = (number / math.sqrt(_EXPANSION) for number in scaler)
        self.expand = HypersphericalLinear(width, _EXPANSION * width)
        self.scaler = Scaler(_EXPANSION * width, init, scale)
        self.contract = HypersphericalLinear(_EXPANSION * width, width)
        self.alpha = Scaler(width, *alpha)

    def forward(self, inputs: Tensor) -> Tensor:
        target = normalize(self.contract(self.scaler(self.expand(inputs)).relu() + EPS), dim=-1, eps=EPS)
        return normalize(inputs + self.alpha(target - inputs), dim=-1, eps=EPS)


class SimBaV2(nn.Module):
    """SimBa v2: embedding on the unit sphere, then `depth` blocks that interpolate to an MLP four times as wide.

    The layer after it is the policy's own, linear with bias and unconstrained, where SimBa v2's predictors are two more
    hyperspherical layers. Such a layer hardly learns from features of norm 1, 1 / sqrt(width) each, so they are handed
    over with `feature_norm`. Weight decay means nothing to the weights on the sphere; it pulls at the scalers alone.
    """

    @dataclass(frozen=True)
    class Options:
        shift: float = 3.0
        """Constant appended to the input before it is normalized, which keeps what the input's norm says."""
        scaler_init: float = 0.0
        """Initial value of the scalers (half of it inside blocks); 0: sqrt(2 / width)."""
        scaler_scale: float = 0.0
        """Initial value of the scalers' parameters (half of it inside blocks); 0: sqrt(2 / width)."""
        alpha_init: float = 0.0
        """Initial part of the way that a block moves the features, at most 1; 0: 1 / (depth + 1)."""
        alpha_scale: float = 0.0
        """Initial value of alpha's parameters; 0: 1 / sqrt(width)."""
        feature_norm: float = 0.0
        """Norm of the features that the next layer reads; 0: sqrt(width), as after a LayerNorm."""

        def __post_init__(self) -> None:
            if not 0 < self.shift < math.inf:
                raise ConfigError(f"the option shift of simba-v2 is {self.shift}; it must be positive and finite")
            if not 0 <= self.alpha_init <= 1:
                raise ConfigError(f"the option alpha_init of simba-v2 is {self.alpha_init}; it must lie in [0, 1]")
            for name in ("scaler_init", "scaler_scale", "alpha_scale", "feature_norm"):
                value = getattr(self, name)
                if not 0 <= value < math.inf:
                    raise ConfigError(
                        f"the option {name} of simba-v2 is {value}; it must be positive and finite (0: by width)"
                    )

    def __init__(self, inputs: int, config: NetworkConfig, options: Options) -> None:
        super().__init__()
        width, depth = config.width, config.depth
        if width < 2:
            raise ConfigError(f"the width of simba-v2 is {width}; it must be at least 2")
        by_width = math.sqrt(2 / width)
        scaler = options.scaler_init or by_width, options.scaler_scale or by_width
        alpha = options.alpha_init or 1 / (depth + 1), options.alpha_scale or 1 / math.sqrt(width)
        self.num_features = width
        self.shift = options.shift
        self.feature_norm = options.feature_norm or math.sqrt(width)
        self.projection = HypersphericalLinear(inputs + 1, width)
        self.scaler = Scaler(width, *scaler)
        self.blocks = nn.Sequential(*(LERPBlock(width, scaler, alpha) for _ in range(depth)))

    def shifted(self, inputs: Tensor) -> Tensor:
        """Return inputs `[..., n]` with the shift appended, `[..., n + 1]`."""
        return torch.cat([inputs, inputs.new_full((*inputs.shape[:-1], 1), self.shift)], dim=-1)

    def forward(self, inputs: Tensor) -> Tensor:
        direction = normalize(self.shifted(inputs), dim=-1, eps=EPS)
        features: Tensor = self.blocks(normalize(self.scaler(self.projection(direction)), dim=-1, eps=EPS))
        return features * self.feature_norm
