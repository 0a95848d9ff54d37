"""What a policy knows about its environment: observation sizes, action bounds, bins. Pure data, no simulator."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Finite bounds of each of m action dimensions, and how the environment takes an action."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    discrete: bool = False
    """Whether an action consists of the integers from `low` to `high` (Discrete and MultiDiscrete spaces)."""
    shape: tuple[int, ...] | None = None
    """The environment's shape of an action, () for a Discrete space; None for a vector of length m."""

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of values of each dimension of a discrete space."""
        return tuple(int(high - low) + 1 for low, high in zip(self.low, self.high, strict=True))

    def for_environment(self, action: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Convert actions `[..., m]`, within rounding of the bounds, to what the environment's space contains."""
        clipped = np.clip(action.astype(np.float64), self.low, self.high)
        clipped = np.rint(clipped) if self.discrete else clipped
        return clipped.astype(dtype).reshape(action.shape[:-1] + (self.shape if self.shape is not None else (-1,)))


@dataclass(frozen=True)
class EnvSpec:
    observation: ObservationSpec
    action: ActionSpec
    max_episode_steps: int | None = None
    """Time limit at which the environment truncates; None if it declares none."""


def bin_positions(spec: ActionSpec, bins: int | Sequence[int], mu: float = 0.0) -> NDArray[np.float64]:
    """Return `[m, K]`: `low + j (high - low) / (K - 1)`, the paper's uniform discretization of each dimension.

    With `mu`, bins are closer together towards zero (see `_compressed`). If the dimensions have different numbers of
    `bins`, K is the largest, and the rows of the others are filled up with their upper bounds.
    """
    counts = [bins] * spec.size if isinstance(bins, int) else list(bins)
    rows = np.empty((spec.size, max(counts)))
    for row, low, high, count in zip(rows, spec.low, spec.high, counts, strict=True):
        fraction = np.arange(count) / (count - 1)
        row[:] = high
        row[:count] = low + (high - low) * (_compressed(fraction, low, high, mu) if mu else fraction)
    return rows


def _compressed(fraction: NDArray[np.float64], low: float, high: float, mu: float) -> NDArray[np.float64]:
    """Move `fraction`, evenly spaced in [0, 1], towards the position of zero in [low, high] by mu-law expansion.

    Where zero lies inside, half of the bins are on either side of it; otherwise bins concentrate at the bound that is
    nearer to zero.
    """
    zero = float(np.clip(-low / (high - low), 0.0, 1.0))
    middle = 0.5 if 0 < zero < 1 else zero
    sign = np.sign(fraction - middle)
    # The distance from the middle as a share of its side, then of the distance from zero to the bound on that side.
    side = np.where(sign < 0, middle, 1 - middle)
    share = np.divide(np.abs(fraction - middle), side, out=np.zeros_like(fraction), where=side > 0)
    reach = np.where(sign < 0, zero, 1 - zero)
    moved: NDArray[np.float64] = zero + sign * reach * np.expm1(share * np.log1p(mu)) / mu
    return moved
