"""A trunk: from observation features to the features that a head or a critic reads."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from detent.config import NetworkConfig
from detent.models.networks.trunks import linear


class SwishTrunk(nn.Module):
    """An MLP of `depth` layers of `width` with SiLU activations."""

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        super().__init__()
        sizes = [inputs, *[config.width] * config.depth]
        self.layers = nn.ModuleList([linear(before, after, gain=1.0) for before, after in pairwise(sizes)])
        self.num_features = sizes[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = nn.functional.silu(layer(inputs))
        return inputs
