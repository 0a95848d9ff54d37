"""How an action is read from its distribution, and what a policy does with observations it cannot read."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from detent.config import READOUTS, ActorConfig, Config, HeadConfig, Readout
from detent.envs.spaces import observation_spec
from detent.models.heads import make_head
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

# The ranges of the two dimensions are 4 and 10, and neither is centred on 0.
ACTION = ActionSpec((-3.0, 0.0), (1.0, 10.0))
CONFIG = Config(actor=ActorConfig(width=8, depth=1), head=HeadConfig(bins=5))


def make(config: Config = CONFIG, observation: ObservationSpec | None = None) -> Policy:
    """A policy far from uniform, for vectors of length 3."""
    policy = Policy(EnvSpec(observation or ObservationSpec(3), ACTION), config).eval()
    layer = policy.actor[1]
    assert isinstance(layer, nn.Linear)
    layer.weight.data *= 100
    return policy


def test_the_expected_action_is_the_sum_of_probabilities_times_bins() -> None:
    head = make_head(ACTION, HeadConfig(bins=5))
    probabilities = torch.tensor([[[0.5, 0.25, 0.125, 0.125, 0.0], [0.0, 0.0, 0.0, 0.25, 0.75]]])
    # Bins -3, -2, -1, 0, 1: -1.5 - .5 - .125 + 0 = -2.125. Bins 0, 2.5, 5, 7.5, 10: 1.875 + 7.5 = 9.375.
    torch.testing.assert_close(head.mean_action(probabilities.log()), torch.tensor([[-2.125, 9.375]]))
    # The most probable ones are the bounds.
    torch.testing.assert_close(head.to_action(head.mode(probabilities.log())), torch.tensor([[-3.0, 10.0]]))


def test_the_expected_action_never_leaves_the_box_by_rounding() -> None:
    head = make_head(ActionSpec((-0.7,), (0.7,)), HeadConfig(bins=41))
    outputs = torch.zeros(1000, 41)
    outputs[:, -1] = torch.linspace(10, 40, 1000)
    assert head.mean_action(head(outputs)).max() <= torch.tensor(0.7)


def test_the_expected_action_of_a_gaussian_is_its_mean_inside_the_box() -> None:
    head = make_head(ACTION, HeadConfig(kind="gaussian"))
    params = torch.tensor([[[0.5, 0.0], [42.0, 0.0]]])
    torch.testing.assert_close(head.mean_action(params), torch.tensor([[0.5, 10.0]]))
    assert head.mean_is_mode


def test_a_head_without_a_formula_averages_its_samples() -> None:
    from detent.models.heads.base import Head
    from detent.models.heads.categorical import CategoricalHead

    class WithoutFormula(CategoricalHead):
        mean_action = Head.mean_action

    head = WithoutFormula(ACTION, HeadConfig(bins=5))
    params = head(torch.randn(200, 10, generator=torch.Generator().manual_seed(0)))
    sampled, exact = head.mean_action(params), CategoricalHead.mean_action(head, params)
    # 64 samples of a variable with a range of 4 and 10: standard errors of at most 2 / 8 and 5 / 8.
    assert ((sampled - exact).abs() < 5 * torch.tensor([0.25, 0.625])).all()
    assert torch.equal(sampled, head.mean_action(params)), "always the same samples"


@pytest.mark.parametrize("readout", READOUTS)
def test_a_call_plays_the_readout_it_is_given_or_remembers(readout: Readout) -> None:
    policy, x = make(), np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    params = policy.params(policy.normalize({"state": torch.from_numpy(x)}))
    expected = {
        "sample": policy.head.to_action(policy.head.sample(params, torch.Generator().manual_seed(1))),
        "mode": policy.head.to_action(policy.head.mode(params)),
        "mean": policy.head.mean_action(params),
    }
    given = policy(x, readout, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(given, expected[readout].detach())
    policy.readout = readout
    np.testing.assert_array_equal(policy(x, generator=torch.Generator().manual_seed(1)), given)
    assert sum(np.array_equal(given, other.detach()) for other in expected.values()) == 1, "the three differ"


def test_an_unknown_readout_is_refused() -> None:
    unknown: Any = "median"
    with pytest.raises(ValueError, match="there is no readout 'median'; valid: sample, mode, mean"):
        make()(np.zeros(3), unknown)
    with pytest.raises(ValueError, match="there is no readout 'median'"):
        make().readout = unknown
    with pytest.raises(ValueError, match="there is no value of on_invalid 'median'; valid: raise, hold"):
        make().on_invalid = unknown
    assert get_args(Readout) == READOUTS


BAD: dict[str, tuple[Any, str]] = {
    "nan": (np.array([0.0, np.nan, 0.0]), r"the observation 'state' is not finite: entry \[0?,? ?1\] is nan"),
    "infinite": (np.array([0.0, 0.0, -np.inf]), r"is not finite: entry .*2\] is -inf"),
    "nan in a batch": (np.array([[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0]]), r"is not finite: entry \[1, 0\] is nan"),
    "short": (np.zeros(2), r"has shape \(2,\); this policy takes vectors of length 3"),
    "a scalar": (np.float32(1.0), r"has shape \(\); this policy takes vectors of length 3"),
    "text": (np.array(["a", "b", "c"]), "is not made of numbers"),
    "ragged": ([[1.0, 2.0, 3.0], [1.0]], "is not made of numbers"),
    "nothing": (None, "is not finite|has shape|not made of numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_observation_that_cannot_be_read_raises(name: str) -> None:
    observation, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        make()(observation)


def test_a_nan_does_not_become_full_torque() -> None:
    # Without the check, log_softmax of NaN has its arg max in bin 0: every joint at its lower bound.
    policy = make()
    params = policy.params({"state": torch.full((1, 3), torch.nan)})
    assert policy.head.to_action(policy.head.mode(params)).tolist() == [[-3.0, 0.0]]
    with pytest.raises(ValueError, match="not finite"):
        policy(np.full(3, np.nan))


def test_a_dict_observation_must_have_all_its_keys() -> None:
    space = spaces.Dict({"a": spaces.Box(-9, 9, (1,)), "z": spaces.Box(-9, 9, (2,))})
    policy = make(observation=observation_spec(space))
    with pytest.raises(ValueError, match=r"the observation lacks 'z'; this policy takes \('a', 'z'\)"):
        policy({"a": np.zeros(1)})
    with pytest.raises(ValueError, match="the observation is ndarray; this policy takes a Dict"):
        policy(np.zeros(3))


def test_images_must_be_bytes_of_one_batch_with_the_state() -> None:
    config = Config(actor=ActorConfig(width=8, depth=1), head=HeadConfig(bins=5))
    policy = make(config, ObservationSpec(3, image=(64, 64, 3)))
    state, rgb = np.zeros((2, 3), np.float32), np.zeros((2, 64, 64, 3), np.uint8)
    assert policy({"state": state, "rgb": rgb}).shape == (2, 2)
    with pytest.raises(ValueError, match=r"the images are torch.float64; this policy takes uint8, 0 to 255"):
        policy({"state": state, "rgb": rgb / 255})
    with pytest.raises(ValueError, match=r"different batch sizes: \[\(1,\), \(2,\)\]"):
        policy({"state": state[:1], "rgb": rgb})
    with pytest.raises(ValueError, match="the observation is ndarray; this policy takes a Dict"):
        policy(state)


@pytest.mark.parametrize("name", [name for name in BAD if name != "nan in a batch"])
def test_holding_repeats_the_last_action_and_counts(name: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = make()
    last = policy(np.array([1.0, -1.0, 0.5]))
    policy.on_invalid = "hold"
    expected = last.copy()
    # What the caller does with the array is no business of the policy.
    last[:] = 99.0
    for count in (1, 2, 3):
        np.testing.assert_array_equal(policy(BAD[name][0]), expected)
        assert policy.held == count
    assert [record.levelname for record in caplog.records] == ["WARNING"], "said once, when it begins"
    assert "the last action is held" in caplog.text
    # The next good observation counts again.
    np.testing.assert_array_equal(policy(np.zeros(3)), make()(np.zeros(3)))
    assert policy.held == 0


def test_each_row_of_a_batch_holds_its_own_action() -> None:
    policy = make()
    policy.on_invalid = "hold"
    first, second = np.random.default_rng(0).normal(size=(2, 4, 3))
    before = policy(first)
    broken = second.copy()
    broken[1, 2] = np.nan
    held = policy(broken)
    assert policy.held == 1
    expected = make()(second)
    expected[1] = before[1]
    np.testing.assert_allclose(held, expected, rtol=1e-6)


def test_an_action_for_another_number_of_observations_is_not_held() -> None:
    policy = make()
    policy.on_invalid = "hold"
    policy(np.zeros(3))
    with pytest.raises(ValueError, match="not finite"):
        policy(BAD["nan in a batch"][0])
    policy(np.zeros((2, 3)))
    for name in ("nan", "short"):
        with pytest.raises(ValueError, match=BAD[name][1]):
            policy(BAD[name][0])


def test_holding_needs_an_action_to_hold() -> None:
    policy = make()
    policy.on_invalid = "hold"
    with pytest.raises(ValueError, match="not finite"):
        policy(np.full(3, np.nan))


def test_a_bool_is_no_readout() -> None:
    # In version 0.1.0 the second argument was `deterministic`.
    no_readout: Any = False
    with pytest.raises(ValueError, match="there is no readout False"):
        make()(np.zeros(3), no_readout)


def test_a_dict_with_a_state_of_its_own_takes_tensors_too() -> None:
    space = spaces.Dict({"goal": spaces.Box(-9, 9, (1,)), "state": spaces.Box(-9, 9, (2,))})
    policy = make(observation=observation_spec(space))
    arrays = {"goal": np.array([0.5], np.float32), "state": np.array([1.0, -1.0], np.float32)}
    action = policy({key: torch.from_numpy(value) for key, value in arrays.items()})
    assert isinstance(action, torch.Tensor)
    np.testing.assert_array_equal(action, policy(arrays))


@pytest.mark.parametrize("readout", ["mode", "mean"])
def test_a_policy_can_be_exported(readout: Readout) -> None:
    policy = make()
    policy.readout = readout
    state = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(policy, (state,))
    torch.testing.assert_close(program.module()(state), policy(state))
