"""Conversion of Gymnasium spaces to specs: vector observations, bounded actions, and readable errors for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from detent.errors import ConfigError
from detent.spec import ActionSpec, ObservationSpec


def observation_spec(space: spaces.Space[Any]) -> ObservationSpec:
    """Return the spec of a vector or of a Dict of vectors; reject anything else."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            _require_vector(part, f"entry '{key}' of the observation")
        keys = tuple(space.spaces)
        if not keys:
            raise ConfigError("the observation is an empty Dict; there is nothing to learn from")
        return ObservationSpec(sum(_length(space[key]) for key in keys), keys)
    _require_vector(space, "the observation")
    return ObservationSpec(_length(space))


def _require_vector(space: spaces.Space[Any], what: str) -> None:
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        raise ConfigError(
            f"{what} is {_describe(space)}, an image; Detent learns from the images of ManiSkill's tasks (--obs "
            "rgb+state). Other environments need a wrapper that encodes the image as a vector of features "
            "(--env.wrappers my_package:Wrapper)"
        )
    raise ConfigError(
        f"{what} is {_describe(space)}; Detent learns from vectors (a one-dimensional Box) and Dicts of them. "
        "gymnasium.wrappers.FlattenObservation turns most other spaces into one"
    )


def _length(space: spaces.Space[Any]) -> int:
    assert isinstance(space, spaces.Box)
    return int(space.shape[0])


def action_spec(space: spaces.Space[Any], low: Sequence[float] = (), high: Sequence[float] = ()) -> ActionSpec:
    """Return the bounds of a Box, or the values of a Discrete or MultiDiscrete space.

    `low` and `high` (one number, or one per dimension) narrow or supply the bounds of a Box. An action of several
    dimensions is flattened.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _discrete_spec(space, low, high)
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"the action space is {_describe(space)}; Detent acts in Box, Discrete and MultiDiscrete spaces"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(f"the action space is {_describe(space)}; Detent acts in Boxes of floating-point numbers")
    size = int(np.prod(space.shape))
    if size == 0:
        raise ConfigError("the action space has no dimensions; Detent needs at least one")
    box_low, box_high = space.low.astype(np.float64).flatten(), space.high.astype(np.float64).flatten()
    chosen_low = _given(low, size, "action-low", box_low)
    chosen_high = _given(high, size, "action-high", box_high)
    for i in range(size):
        where = f"action dimension {i}"
        if not (np.isfinite(chosen_low[i]) and np.isfinite(chosen_high[i])):
            raise ConfigError(
                f"{where} has bounds [{box_low[i]:g}, {box_high[i]:g}]; bins need finite ones: "
                "give --action-low and --action-high (one number for all dimensions, or one for each)"
            )
        if chosen_low[i] < box_low[i] or chosen_high[i] > box_high[i]:
            raise ConfigError(
                f"{where} was given the range [{chosen_low[i]:g}, {chosen_high[i]:g}], which leaves its space "
                f"[{box_low[i]:g}, {box_high[i]:g}]"
            )
        if not chosen_low[i] < chosen_high[i]:
            raise ConfigError(
                f"{where} has the empty range [{chosen_low[i]:g}, {chosen_high[i]:g}]; the lower bound must be below "
                "the upper (remove a dimension that cannot move from the environment)"
            )
    return ActionSpec(tuple(chosen_low.tolist()), tuple(chosen_high.tolist()), shape=_unless_vector(space.shape))


def _discrete_spec(
    space: spaces.Discrete | spaces.MultiDiscrete, low: Sequence[float], high: Sequence[float]
) -> ActionSpec:
    """Return the values of a discrete space, from its first to its last in each dimension."""
    if len(low) or len(high):
        raise ConfigError(f"--action-low and --action-high are for Boxes; the action space is {space}")
    count = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).flatten()
    start = np.broadcast_to(np.asarray(space.start).flatten(), count.shape)
    if count.size == 0 or count.min() < 2:
        raise ConfigError(
            f"the action space is {space}; every dimension needs at least 2 values (remove one that cannot change from "
            "the environment)"
        )
    first, last = start.astype(np.float64), (start + count - 1).astype(np.float64)
    return ActionSpec(tuple(first.tolist()), tuple(last.tolist()), discrete=True, shape=_unless_vector(space.shape))


def _unless_vector(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if shape is None or len(shape) == 1 else shape


def _given(values: Sequence[float], size: int, flag: str, default: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) == 0:
        return default
    if len(values) not in (1, size):
        raise ConfigError(f"--{flag} has {len(values)} numbers; the action has {size} dimensions (give 1 or {size})")
    given = np.broadcast_to(np.asarray(values, dtype=np.float64), (size,))
    # A float32 Box holds 0.69999999 where its author and the user both wrote 0.7.
    return np.where(np.isclose(given, default, rtol=1e-6, atol=0.0), default, given)


def _describe(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        return f"a Box of shape {space.shape} and type {space.dtype}"
    return f"{space}"
