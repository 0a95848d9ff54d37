"""Two digits per action dimension: a coarse bin, then a position inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads.bins import equal_count
from detent.models.heads.categorical import IMPOSSIBLE, CategoricalHead
from detent.spec import ActionSpec


class CoarseFineHead(CategoricalHead):
    """A coarse digit of C values, and a fine digit of F values given the coarse one: K = C F positions.

    The network gives 2 C + F numbers per dimension: the logits of the coarse digit, a slope for each coarse value, and
    the fine digit's logits, which are tilted by the coarse value's slope. Parameters are the joint log-probabilities
    `[B, m, K]`, which are exact. If K is not a product, the last coarse value has fewer positions.
    """

    @dataclass(frozen=True)
    class Options:
        coarse: int = 0
        """Values of the coarse digit; 0: the root of the number of bins."""

        def __post_init__(self) -> None:
            if self.coarse < 0:
                raise ConfigError(f"head.options.coarse is {self.coarse}; it must not be negative (0: automatic)")

    _ramp: Tensor
    _missing: Tensor
    _log_positions: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig, options: Options) -> None:
        super().__init__(action, config)
        bins = equal_count(action, config, "coarse-fine")
        if options.coarse > bins:
            raise ConfigError(f"head.options.coarse is {options.coarse}, and there are only {bins} bins")
        self.fine = math.ceil(bins / (options.coarse or round(math.sqrt(bins))))
        self.coarse = math.ceil(bins / self.fine)
        self.num_outputs = action.size * (2 * self.coarse + self.fine)
        missing = (torch.arange(self.coarse * self.fine) >= bins).view(self.coarse, self.fine)
        self.register_buffer("_ramp", torch.linspace(-1, 1, self.fine), persistent=False)
        self.register_buffer("_missing", torch.where(missing, IMPOSSIBLE, 0.0), persistent=False)
        # With these, equal outputs give every position the same probability.
        self.register_buffer("_log_positions", (~missing).sum(-1).to(torch.get_default_dtype()).log(), persistent=False)

    def forward(self, outputs: Tensor) -> Tensor:
        coarse, slope, fine = outputs.unflatten(-1, (len(self.counts), -1)).split(
            (self.coarse, self.coarse, self.fine), dim=-1
        )
        conditional = fine.unsqueeze(-2) + slope.unsqueeze(-1) * self._ramp + self._missing
        joint = log_softmax(coarse + self._log_positions, -1).unsqueeze(-1) + log_softmax(conditional, -1)
        return joint.flatten(start_dim=-2)[..., : self.counts[0]]
