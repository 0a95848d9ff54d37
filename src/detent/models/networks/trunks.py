"""The trunks of actor and critic, and the weight initialization of every layer.

Where the paper does not specify the initialization, its released code's is used: orthogonal with gain sqrt(2) for MLP
layers and gain 1 for the projection, He-normal inside residual blocks, orthogonal with gain 0.01 before the head.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from detent.config import NetworkConfig


class Tanh(nn.Module):
    """tanh(x), computed on a CPU as 2 sigmoid(2x) - 1 because torch's own takes twice as long there."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.device.type != "cpu":
            return inputs.tanh()
        # A tensor plus itself: torch takes twice as long to multiply a small tensor by a number.
        squashed = (inputs + inputs).sigmoid_()
        return squashed + squashed - 1


ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": Tanh, "relu": nn.ReLU}


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Make a linear layer with orthogonal weights scaled by `gain` and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _he_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


class Residual(nn.Sequential):
    """`h + f(h)`, where f is the sequence of the given layers."""

    def forward(self, inputs: Tensor) -> Tensor:
        change = inputs
        for layer in self:
            change = layer(change)
        return inputs + change


class MLP(nn.Sequential):
    """`depth` hidden layers of `width`."""

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        layers: list[nn.Module] = []
        self.num_features = inputs
        for _ in range(config.depth):
            layers += [linear(self.num_features, config.width, math.sqrt(2)), ACTIVATIONS[config.activation]()]
            self.num_features = config.width
        super().__init__(*layers)


class Block(nn.Module):
    """`h + FFN(LN(h))` with an FFN that widens four times; LayerNorm and skip can be left out (component study)."""

    def __init__(self, width: int, layer_norm: bool, residual: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.expand = _he_linear(width, 4 * width)
        self.contract = _he_linear(4 * width, width)
        self.residual = residual

    def forward(self, hidden: Tensor) -> Tensor:
        change: Tensor = self.contract(self.expand(self.norm(hidden)).relu())
        return hidden + change if self.residual else change


class RegularizedNetwork(nn.Module):
    """Projection, `depth` pre-LayerNorm residual blocks, final LayerNorm."""

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.num_features = config.width
        self.projection = linear(inputs, config.width, gain=1.0)
        self.blocks = nn.Sequential(
            *(Block(config.width, config.layer_norm, config.residual) for _ in range(config.depth))
        )
        self.norm = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.norm(self.blocks(self.projection(inputs)))
        return features
