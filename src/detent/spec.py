"""What a policy knows about its environment: observation sizes, action bounds, bins. Pure data, no simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Observation: TypeAlias = "dict[str, Tensor]"
"""Batched observations by key; `state` is float32 `[N, n]`, `rgb` is uint8 `[N, height, width, channels]`."""


@dataclass(frozen=True)
class ObservationSpec:
    """The observation as the policy sees it, `{"state": [n], "rgb": [height, width, channels]}` or one of the two, and
    how to obtain it from the environment's observation."""

    size: int
    """Length of the state vector; 0 if there are only images."""
    keys: tuple[str, ...] = ()
    """Keys of a Dict observation whose vectors are concatenated in this order; empty for a plain vector."""
    image: tuple[int, ...] = ()
    """Height, width and channels of `rgb` (three for each camera); empty if there are no images."""

    @property
    def parts(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of one observation, by key."""
        state: dict[str, tuple[tuple[int, ...], str]] = {"state": ((self.size,), "float32")} if self.size else {}
        return state | ({"rgb": (self.image, "uint8")} if self.image else {})

    def state(self, raw: Any) -> NDArray[np.float32]:
        """Convert a raw observation, single or batched (`[..., k]` per vector), to float32 `[..., n]`."""
        if self.keys:
            raw = np.concatenate([np.asarray(raw[key], dtype=np.float32) for key in self.keys], axis=-1)
        return np.asarray(raw, dtype=np.float32)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return messages for the user about the conversion."""
        if self.image:
            height, width, channels = self.image
            beside = f"and {self.size} numbers" if self.size else "alone, without the state vector (rgb+state has both)"
            return (f"The policy sees {height} x {width} images of {channels // 3} camera(s) {beside}.",)
        if not self.keys:
            return ()
        return (f"Dict observation: {', '.join(self.keys)} concatenated in this order into {self.size} numbers.",)


@dataclass(frozen=True)
class ActionSpec:
    """Finite bounds of each action dimension."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class EnvSpec:
    observation: ObservationSpec
    action: ActionSpec
    max_episode_steps: int | None = None
    """Time limit at which the environment truncates; None if it declares none."""


def bin_positions(spec: ActionSpec, bins: int) -> NDArray[np.float64]:
    """Return `[m, K]`: `low + j (high - low) / (K - 1)`, the paper's uniform discretization of each dimension."""
    low, high = np.asarray(spec.low)[:, None], np.asarray(spec.high)[:, None]
    fraction: NDArray[np.float64] = np.arange(bins) / (bins - 1)
    positions: NDArray[np.float64] = low + (high - low) * fraction
    return positions
