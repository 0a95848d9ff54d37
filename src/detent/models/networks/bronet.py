"""BroNet, the network of BRO, "Bigger, Regularized, Optimistic" (Nauman et al. 2024, arXiv 2405.16158)."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from detent.config import NetworkConfig
from detent.models.networks.simba import LAYER_NORM_EPS
from detent.models.networks.trunks import Residual, linear


class BroNet(nn.Sequential):
    """BroNet: Linear, LayerNorm, ReLU, then `depth` residual blocks of Linear, LayerNorm, ReLU, Linear, LayerNorm.

    Every layer has `width` units and starts orthogonal with gain sqrt(2). Features are the sum of the skips, which no
    LayerNorm bounds. The layer after it is the policy's own, orthogonal with the head's gain (BRO's is sqrt(2)).
    """

    projection: nn.Linear
    norm: nn.LayerNorm
    blocks: nn.Sequential

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        self.num_features = config.width
        projection, norm = _normalized(inputs, config.width)
        blocks = nn.Sequential(*(_block(config.width) for _ in range(config.depth)))
        super().__init__(OrderedDict(projection=projection, norm=norm, activation=nn.ReLU(), blocks=blocks))


def _block(width: int) -> Residual:
    return Residual(*_normalized(width, width), nn.ReLU(), *_normalized(width, width))


def _normalized(inputs: int, outputs: int) -> tuple[nn.Linear, nn.LayerNorm]:
    """Make a linear layer and the LayerNorm after it, with the epsilon of flax, which the authors used."""
    return linear(inputs, outputs, gain=math.sqrt(2)), nn.LayerNorm(outputs, LAYER_NORM_EPS)
