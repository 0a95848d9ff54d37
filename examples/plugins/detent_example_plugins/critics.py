"""A critic: what it predicts, how it is trained on returns, and the value of its prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import huber_loss

import detent
from detent.config import CriticConfig


class HuberCritic(detent.CriticHead):
    """One number per state, trained by the Huber loss, which large errors move less."""

    num_outputs = 1

    @dataclass(frozen=True)
    class Options:
        delta: float = 1.0
        """Error from which the loss grows linearly."""

    def __init__(self, config: CriticConfig, options: Options) -> None:
        super().__init__()
        self._delta = options.delta

    def value(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        return huber_loss(self.value(outputs), returns, delta=self._delta)
