"""Encoders: from a normalized observation to the features that actor and critic share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from detent.config import EncoderConfig
from detent.models.networks.trunks import linear
from detent.spec import Observation, ObservationSpec


class NatureCNN(nn.Module):
    """The convolutional network of DQN's Nature paper: images `[..., height, width, channels]` to features."""

    def __init__(self, image: tuple[int, ...], features: int) -> None:
        super().__init__()
        height, width, channels = image
        layers: list[nn.Module] = []
        for outputs, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers += [_convolution(channels, outputs, kernel, stride), nn.ReLU()]
            height, width = ((size - kernel) // stride + 1 for size in (height, width))
            channels = outputs
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.projection = linear(channels * height * width, features, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        """Map images to features; uint8 pixels are stored as they are and scaled here, one minibatch at a time."""
        leading, picture = images.shape[:-3], images.shape[-3:]
        scaled = images.reshape(-1, *picture).movedim(-1, -3).to(self.projection.weight.dtype) / 255
        features: Tensor = self.projection(self.convolutions(scaled)).relu()
        return features.view(*leading, -1)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride)
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class NatureEncoder(nn.Module):
    """A state vector unchanged, or images encoded by a CNN, with a linear layer for the state if there is one."""

    def __init__(self, observation: ObservationSpec, config: EncoderConfig) -> None:
        super().__init__()
        self.num_features = observation.size
        self.has_images = bool(observation.image)
        if self.has_images:
            self.num_features = config.width * (2 if observation.size else 1)
            self.images = NatureCNN(observation.image, config.width)
            self.state = linear(observation.size, config.width, gain=math.sqrt(2)) if observation.size else None

    def forward(self, observation: Observation) -> Tensor:
        """Map normalized observations to `[B, num_features]`."""
        if not self.has_images:
            return observation["state"]
        features: Tensor = self.images(observation["rgb"])
        return features if self.state is None else torch.cat([features, self.state(observation["state"])], dim=-1)
