"""HL-Gauss: classification with targets smoothed by a Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from detent.config import CriticConfig
from detent.errors import ConfigError
from detent.models.critics.categorical import CategoricalCritic, require_support


class HLGaussCritic(CategoricalCritic):
    """Classification over even bins, with a Gaussian around the return as target (HL-Gauss).

    Imani & White 2018; Farebrother et al. 2024, "Stop Regressing". The target of a bin is the Gaussian's mass in it,
    divided by the mass within the support.
    """

    edges: Tensor
    """`[K + 1]`."""

    @dataclass(frozen=True)
    class Options:
        low: float = -100.0
        """Lower end of the support, in the units of the (normalized) return."""
        high: float = 100.0
        """Upper end of the support."""
        bins: int = 401
        """Number of bins, all of the same width."""
        sigma: float = 0.75
        """Standard deviation of the target, in bin widths."""

        def __post_init__(self) -> None:
            require_support(self.low, self.high, self.bins)
            if not 0 < self.sigma < math.inf:
                raise ConfigError(f"critic.head_options.sigma is {self.sigma}; it must be positive and finite")

    def __init__(self, config: CriticConfig, options: Options) -> None:
        edges = torch.linspace(options.low, options.high, options.bins + 1, dtype=torch.float64)
        super().__init__((options.low, options.high), (edges[:-1] + edges[1:]) / 2)
        self.register_buffer("edges", edges.to(self.bins.dtype))
        self._sigma = options.sigma * (options.high - options.low) / options.bins

    def project(self, returns: Tensor) -> Tensor:
        # The normal distribution function is (1 + erf) / 2; the constants cancel in the quotient.
        below = torch.erf((self.edges - returns[:, None]) / (math.sqrt(2) * self._sigma))
        return below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
