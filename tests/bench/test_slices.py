"""Slices of an iteration, and what they add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detent.bench.cases import diagnostics_cost, split
from detent.bench.slices import ratios, slice_of, steps_per_second, timing, whole_iteration
from detent.config import Config, EnvConfig, UpdateConfig, validate
from detent.config.presets import configure


def test_a_slice_of_the_papers_iteration_has_minibatches_of_the_same_size() -> None:
    config = configure("HalfCheetah-v4")
    sliced = slice_of(config)
    # 16 environments x 128 steps are 8 minibatches of 256; four epochs make 32 updates.
    assert (sliced.rollout_steps, sliced.update.minibatches, sliced.update.epochs) == (128, 8, 4)
    assert replace(sliced, rollout_steps=config.rollout_steps, update=config.update) == config


def test_an_iteration_that_is_small_already_keeps_its_rollout() -> None:
    sliced = slice_of(configure("HalfCheetah-v4", preset="fast"))
    assert (sliced.rollout_steps, sliced.update.minibatches, sliced.update.epochs) == (128, 32, 1)


@pytest.mark.parametrize(("envs", "steps", "minibatches"), [(3, 1000, 10), (7, 64, 1), (5, 300, 15), (1, 2048, 32)])
def test_a_slice_is_a_valid_configuration_whatever_the_numbers(envs: int, steps: int, minibatches: int) -> None:
    config = Config(
        task="X-v0",
        env=EnvConfig(num_envs=envs),
        rollout_steps=steps,
        update=UpdateConfig(minibatches=minibatches),
    )
    sliced = slice_of(config)
    validate(sliced)
    assert sliced.batch_size // sliced.update.minibatches == config.batch_size // minibatches
    assert sliced.rollout_steps <= steps


def test_slices_add_up_to_an_iteration() -> None:
    config = configure("HalfCheetah-v4")
    seconds = {"simulate": 0.1, "act": 0.2, "prepare": 0.01, "forward and backward": 0.5, "optimizer": 0.3}
    whole = whole_iteration(seconds, slice_of(config), config)
    # An eighth of the steps; and of the updates an eighth of 4 in 10 epochs.
    assert whole == pytest.approx(
        {"simulate": 0.8, "act": 1.6, "prepare": 0.08, "forward and backward": 10.0, "optimizer": 6.0}
    )
    assert steps_per_second(whole, config) == pytest.approx(16384 / 18.48)


def test_a_whole_iteration_is_left_as_it_is() -> None:
    config = configure("HalfCheetah-v4")
    assert whole_iteration({"collect": 2.0, "update": 3.0}, config, config) == {"collect": 2.0, "update": 3.0}


def test_a_spread_has_median_and_range() -> None:
    measured = timing([3.0, 1.0, 2.0])
    assert (measured.median, measured.low, measured.high) == (2.0, 1.0, 3.0)
    assert f"{measured:.1f}" == "2.0 (1.0 to 3.0)"
    assert f"{timing([2.0]):.1f}" == "2.0"


def test_ratios_are_taken_round_by_round() -> None:
    # A machine that is half as fast in the second round changes no ratio.
    assert ratios(timing([200.0, 100.0]), timing([100.0, 50.0])).rounds == (2.0, 2.0)


def test_what_diagnostics_cost_is_a_share_of_the_time_without_them() -> None:
    rounds = [{"act": 60.0, "optimizer": 40.0, "diagnostics": seconds} for seconds in (3.0, 1.0)]
    assert diagnostics_cost(rounds).rounds == pytest.approx((0.03, 0.01))


def test_the_split_is_of_medians_and_adds_up() -> None:
    rounds = [{"act": 2.0, "optimizer": 3.0}, {"act": 2.0, "optimizer": 300.0}, {"act": 1.0, "optimizer": 2.0}]
    assert split(rounds) == pytest.approx({"act": 2 / 5, "optimizer": 3 / 5})
