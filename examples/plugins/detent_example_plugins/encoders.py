"""An encoder: from a normalized observation to the features that actor and critic share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from detent.config import EncoderConfig
from detent.spec import Observation, ObservationSpec


class FourierEncoder(nn.Module):
    """The state vector, and sines and cosines of it at learned frequencies."""

    @dataclass(frozen=True)
    class Options:
        frequency: float = 1.0
        """Initial frequency of every entry."""

    def __init__(self, observation: ObservationSpec, config: EncoderConfig, options: Options) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.full((observation.size,), options.frequency))
        self.num_features = 3 * observation.size

    def forward(self, observation: Observation) -> Tensor:
        angle = self.frequency * observation["state"]
        return torch.cat([observation["state"], angle.sin(), angle.cos()], dim=-1)
