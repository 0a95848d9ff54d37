"""SimBa (Lee et al. 2024, arXiv 2410.09754), the network that the regularized network of RN-D descends from.

Its first part, observations normalized by running statistics, is the policy's normalizer. The rest has the layers of
`rn`, so the two differ only in what flax, which the authors used, does differently from torch: He-normal weights are
drawn from a truncated normal distribution, and LayerNorm adds 1e-6 to the variance instead of 1e-5.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from detent.config import NetworkConfig
from detent.models.networks.trunks import Residual, linear

LAYER_NORM_EPS = 1e-6
_TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""


class SimBa(nn.Sequential):
    """SimBa: projection, `depth` pre-LayerNorm residual blocks that widen four times, final LayerNorm.

    The layer after it is the policy's own, orthogonal with the head's gain (0.01 for the actor; SimBa's is 1).
    """

    projection: nn.Linear
    blocks: nn.Sequential
    norm: nn.LayerNorm

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        self.num_features = config.width
        super().__init__(
            OrderedDict(
                projection=linear(inputs, config.width, gain=1.0),
                blocks=nn.Sequential(*(_block(config.width) for _ in range(config.depth))),
                norm=nn.LayerNorm(config.width, LAYER_NORM_EPS),
            )
        )


def _block(width: int) -> Residual:
    norm = nn.LayerNorm(width, LAYER_NORM_EPS)
    return Residual(norm, _he_linear(width, 4 * width), nn.ReLU(), _he_linear(4 * width, width))


def _he_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a linear layer with weights of variance 2 / inputs, normal but cut off at two deviations, and zero bias."""
    layer = nn.Linear(inputs, outputs)
    std = math.sqrt(2 / inputs) / _TRUNCATED_STD
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
    return layer
