"""Poisson-shaped probabilities over bins (Zhu et al., "Discretizing Continuous Action Space with Unimodal Probability
Distributions for On-Policy Reinforcement Learning", 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads.categorical import CategoricalHead
from detent.spec import ActionSpec


class UnimodalHead(CategoricalHead):
    """A softmax over the logarithms of a Poisson distribution, which has one mode, at a temperature.

    The network gives one number per dimension, the rate lambda = softplus(h); bin j has the logit
    (j log lambda - lambda - log j!) / temperature. A fresh network's lambda is the centre bin, and an output of 1 moves
    it by half the range. The standard deviation is about sqrt(lambda temperature) bins.
    """

    @dataclass(frozen=True)
    class Options:
        temperature: float = 0.0
        """Initial temperature; 0: (K - 1) / 8, for a standard deviation of a quarter of the range."""
        learn_temperature: bool = True
        """Learn a temperature for each action dimension, as a Gaussian learns its standard deviation."""

        def __post_init__(self) -> None:
            if not 0 <= self.temperature < math.inf:
                raise ConfigError(
                    f"head.options.temperature is {self.temperature}; it must be finite and not negative (0: automatic)"
                )

    log_temperature: Tensor
    _index: Tensor
    _log_factorial: Tensor
    _centre: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig, options: Options) -> None:
        super().__init__(action, config)
        self.num_outputs = action.size
        counts = torch.tensor(self.counts, dtype=torch.get_default_dtype())
        log_temperature = ((counts - 1) / 8 if options.temperature == 0 else counts * 0 + options.temperature).log()
        if options.learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)
        index = torch.arange(max(self.counts), dtype=torch.get_default_dtype())
        self.register_buffer("_index", index, persistent=False)
        self.register_buffer("_log_factorial", torch.lgamma(index.double() + 1).to(index.dtype), persistent=False)
        self.register_buffer("_centre", (counts - 1) / 2, persistent=False)

    def logits(self, outputs: Tensor) -> Tensor:
        # The bias for which softplus gives the centre bin; outputs count in halves of the range.
        bias = self._centre + (-(-self._centre).exp()).log1p()
        rate = softplus(bias + self._centre * outputs).clamp(min=1e-6).unsqueeze(-1)
        poisson = self._index * rate.log() - rate - self._log_factorial
        return self.masked(poisson * (-self.log_temperature).exp()[:, None])
