from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from detent.envs.spaces import action_spec, observation_spec
from detent.errors import ConfigError
from detent.spec import ActionSpec, bin_positions


def box(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


def test_dict_of_vectors_is_concatenated_in_key_order() -> None:
    space = spaces.Dict({"z": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-1, 1, (1,))})
    spec = observation_spec(space)
    assert (spec.size, spec.keys) == (3, tuple(space.spaces))
    parts = {"z": np.array([1.0, 2.0]), "a": np.array([3.0])}
    assert spec.state(parts).tolist() == np.concatenate([parts[key] for key in space.spaces]).tolist()
    assert spec.state(parts).dtype == np.float32
    batch = {"z": np.zeros((5, 2)), "a": np.ones((5, 1))}
    assert spec.state(batch).shape == (5, 3)
    assert all(key in spec.notes[0] for key in ("a", "z"))


@pytest.mark.parametrize(
    ("space", "word"),
    [
        (spaces.Discrete(4), "Discrete"),
        (spaces.MultiBinary(4), "MultiBinary"),
        (spaces.Tuple([spaces.Box(-1, 1, (2,))]), "Tuple"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), r"shape \(8, 8, 3\)"),
        (spaces.Box(-1, 1, ()), r"shape \(\)"),
        (spaces.Dict({"state": spaces.Box(-1, 1, (2,)), "goal": spaces.Discrete(3)}), "entry 'goal'.*Discrete"),
        (spaces.Dict({"nested": spaces.Dict({"a": spaces.Box(-1, 1, (2,))})}), "entry 'nested'"),
        (spaces.Dict({}), "empty Dict"),
    ],
)
def test_other_observation_spaces_are_refused(space: spaces.Space[object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        observation_spec(space)


def test_images_are_not_advised_to_be_flattened_but_other_arrays_are() -> None:
    image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    for space in (image, spaces.Dict({"camera": image})):
        with pytest.raises(ConfigError, match=r"an image; .* ManiSkill's tasks \(--obs rgb\+state\)") as raised:
            observation_spec(space)
        assert "a wrapper that encodes the image" in str(raised.value)
        assert "Flatten" not in str(raised.value)
    for other in (spaces.Box(-1, 1, (4, 4)), spaces.Discrete(4), spaces.Box(0, 255, (8, 8), np.uint8)):
        with pytest.raises(ConfigError, match="FlattenObservation"):
            observation_spec(other)


@pytest.mark.parametrize(
    ("space", "word"),
    [
        (spaces.MultiBinary(3), "MultiBinary"),
        (spaces.Discrete(1), "every dimension needs at least 2 values"),
        (spaces.MultiDiscrete([3, 1]), "every dimension needs at least 2 values"),
        (spaces.Dict({"arm": spaces.Box(-1, 1, (2,))}), "Dict"),
        (spaces.Box(0, 9, (2,), np.int64), "int64"),
        (spaces.Box(-1, 1, (0,)), "no dimensions"),
    ],
)
def test_action_spaces_that_cannot_be_acted_in_are_refused(space: spaces.Space[object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        action_spec(space)


@pytest.mark.parametrize(
    ("space", "flat", "expected"),
    [
        (spaces.Discrete(4, start=-1), [[1.9], [-1.2]], [2, -1]),
        (spaces.MultiDiscrete([2, 5], start=[0, 3]), [[0.6, 3.0], [0.0, 7.1]], [[1, 3], [0, 7]]),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
            [[1, 2, 3, 4], [0, 0, 0, 9]],
            [[[1, 2], [3, 4]], [[0, 0], [0, 4]]],
        ),
        (spaces.Box(-1, 1, (2, 2)), [[1, 0.5, 0, -1], [0, 0, 0, 9]], [[[1, 0.5], [0, -1]], [[0, 0], [0, 1]]]),
        (spaces.Box(-1, 1, ()), [[0.25], [-3]], [0.25, -1]),
    ],
)
def test_flat_actions_become_what_the_space_contains(space: Any, flat: list[list[float]], expected: list[Any]) -> None:
    spec = action_spec(space)
    assert spec.discrete != isinstance(space, spaces.Box)
    actions = spec.for_environment(np.asarray(flat, np.float32), space.dtype)
    np.testing.assert_array_equal(actions, expected)
    for action in actions:
        assert space.contains(np.asarray(action, space.dtype)[()])


def test_bounds_are_for_boxes() -> None:
    with pytest.raises(ConfigError, match=r"--action-low and --action-high are for Boxes; .* Discrete"):
        action_spec(spaces.Discrete(4), low=[0.0])


@pytest.mark.parametrize("low", [-np.inf, -1.0])
def test_unbounded_and_half_bounded_actions_need_bounds_from_the_user(low: float) -> None:
    space = box([-1.0, low], [1.0, np.inf])
    with pytest.raises(ConfigError, match=r"action dimension 1 has bounds .*inf\].*--action-low and --action-high"):
        action_spec(space)
    assert action_spec(space, low=[-1.0], high=[1.0, 5.0]) == ActionSpec((-1.0, -1.0), (1.0, 5.0))


def test_a_dimension_that_cannot_move_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"action dimension 1 has the empty range \[2, 2\]"):
        action_spec(box([0.0, 2.0], [1.0, 2.0]))
    with pytest.raises(ConfigError, match="empty range"):
        action_spec(box([-1.0], [1.0]), low=[0.5], high=[-0.5])


def test_bounds_narrow_the_box_but_never_leave_it() -> None:
    space = box([-1.0, -2.0], [1.0, 2.0])
    assert action_spec(space) == ActionSpec((-1.0, -2.0), (1.0, 2.0))
    assert action_spec(space, low=[-0.5], high=[0.5]) == ActionSpec((-0.5, -0.5), (0.5, 0.5))
    with pytest.raises(ConfigError, match=r"dimension 0 was given the range \[-1.5, 1\], which leaves .*\[-1, 1\]"):
        action_spec(space, low=[-1.5, -2.0])
    with pytest.raises(ConfigError, match=r"--action-high has 3 numbers; the action has 2 dimensions"):
        action_spec(space, high=[1.0, 1.0, 1.0])


def test_a_bound_written_in_decimals_is_that_of_the_float32_box() -> None:
    space = box([-0.7], [0.7])
    assert float(space.high[0]) < 0.7
    assert action_spec(space, low=[-0.7], high=[0.7]) == action_spec(space)


def test_bins_are_evenly_spaced_on_each_dimensions_own_bounds() -> None:
    # K = 5: steps of (high - low) / 4, that is 0.5 and 2.5.
    positions = bin_positions(ActionSpec((-3.0, 0.0), (-1.0, 10.0)), 5)
    assert positions.tolist() == [[-3.0, -2.5, -2.0, -1.5, -1.0], [0.0, 2.5, 5.0, 7.5, 10.0]]
