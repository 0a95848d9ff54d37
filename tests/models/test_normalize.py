from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from detent.models.normalize import ObservationNormalizer, RewardScaler, RunningMoments

Array = NDArray[np.float64]


def batches(offset: float, spread: float) -> list[torch.Tensor]:
    """Float32 batches of unequal size, each drifting away from the one before."""
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy((offset + spread * (i + rng.standard_normal((size, 3)))).astype(np.float32))
        for i, size in enumerate((1, 1000, 7, 300))
    ]


@pytest.mark.parametrize(("offset", "spread"), [(0.0, 1.0), (-3.0, 1e-4), (1e6, 1.0), (-1e6, 50.0)])
def test_moments_are_those_of_all_batches_together(offset: float, spread: float) -> None:
    # With a mean of 1e6 and a variance of 1, E[x^2] - E[x]^2 would keep four digits.
    moments = RunningMoments(3)
    seen = batches(offset, spread)
    for n in range(len(seen)):
        moments.merge(seen[n])
        together = torch.cat(seen[: n + 1]).numpy().astype(np.float64)
        np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-13)
        np.testing.assert_allclose(moments.var, together.var(0), rtol=1e-9, atol=1e-18)
        assert moments.count == len(together)


def test_moments_do_not_depend_on_how_the_rows_are_divided() -> None:
    rows = torch.cat(batches(1e6, 1.0))
    at_once, one_by_one = RunningMoments(3), RunningMoments(3)
    at_once.merge(rows)
    for row in rows:
        one_by_one.merge(row[None])
    np.testing.assert_allclose(one_by_one.mean, at_once.mean, rtol=1e-13)
    np.testing.assert_allclose(one_by_one.var, at_once.var, rtol=1e-9)


def test_observations_become_mean_0_and_variance_1_and_are_clipped() -> None:
    normalizer = ObservationNormalizer(2, clip=2.0)
    # Column means 1 and -4, variances (2^2 + 2^2) / 2 = 4 and 9.
    normalizer.merge(torch.tensor([[-1.0, -1.0], [3.0, -7.0]]))
    out = normalizer(torch.tensor([[-1.0, -1.0], [3.0, -7.0], [1.0, -4.0], [2.0, -5.5], [9.0, -100.0]]))
    by_hand = [[-1.0, 1.0], [1.0, -1.0], [0.0, 0.0], [0.5, -0.5], [2.0, -2.0]]
    np.testing.assert_allclose(out, by_hand, rtol=1e-6, atol=1e-7)


def test_observations_pass_unchanged_but_clipped_before_the_first_merge() -> None:
    x = torch.tensor([[0.5, -3.0], [20.0, -20.0]])
    assert ObservationNormalizer(2, clip=10.0)(x).tolist() == [[0.5, -3.0], [10.0, -10.0]]


def test_a_large_offset_costs_no_more_than_the_rounding_of_the_observation() -> None:
    normalizer = ObservationNormalizer(3, clip=10.0)
    rows = torch.cat(batches(1e6, 1.0))
    normalizer.merge(rows)
    double = rows.numpy().astype(np.float64)
    expected = (double - double.mean(0)) / double.std(0)
    # Float32 numbers near 1e6 are 1/16 apart, so the mean is known to 1/32.
    error = np.abs(normalizer(rows).numpy() - expected)
    assert (error <= 1 / 32 / double.std(0) + 1e-6).all()


def test_a_constant_observation_stays_finite() -> None:
    normalizer = ObservationNormalizer(1, clip=10.0)
    normalizer.merge(torch.full((100, 1), 7.0))
    assert normalizer(torch.tensor([[7.0], [8.0]])).tolist() == [[0.0], [10.0]]


def test_statistics_change_only_by_merging() -> None:
    normalizer = ObservationNormalizer(3, clip=10.0).train()
    normalizer.merge(torch.randn(50, 3))
    before = {key: value.clone() for key, value in normalizer.named_buffers()}
    for _ in range(3):
        normalizer(100 * torch.randn(50, 3))
    assert all(torch.equal(value, before[key]) for key, value in normalizer.named_buffers())
    x = torch.randn(5, 3)
    out = normalizer(x)
    normalizer.merge(torch.randn(50, 3) + 1)
    assert not torch.equal(normalizer(x), out)


def test_a_state_dict_brings_back_the_same_bits() -> None:
    saved = ObservationNormalizer(3, clip=10.0)
    saved.merge(5 + 3 * torch.randn(50, 3))
    loaded = ObservationNormalizer(3, clip=10.0)
    loaded.load_state_dict(saved.state_dict())
    x = torch.randn(20, 3)
    assert torch.equal(loaded(x), saved(x))
    # Also as part of something larger, and after both have seen more.
    whole = torch.nn.Sequential(ObservationNormalizer(3, clip=10.0))
    whole.load_state_dict(torch.nn.Sequential(saved).state_dict())
    more = torch.randn(20, 3)
    saved.merge(more)
    inner = whole[0]
    assert isinstance(inner, ObservationNormalizer)
    inner.merge(more)
    assert torch.equal(whole(x), saved(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_loads_statistics_into_itself_and_not_into_the_original(duplicate: object) -> None:
    assert callable(duplicate)
    original, other = ObservationNormalizer(3, clip=10.0), ObservationNormalizer(3, clip=10.0)
    other.merge(5 + 3 * torch.randn(50, 3))
    twin = duplicate(original)
    twin.load_state_dict(other.state_dict())
    x = torch.randn(20, 3)
    assert torch.equal(twin(x), other(x))
    assert torch.equal(original(x), x)


class PlainScaler:
    """The definition, number by number: every discounted return so far is kept."""

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        self.gamma, self.clip = gamma, clip
        self.running = [0.0] * num_envs
        self.returns: list[float] = []

    def __call__(self, reward: Array, ended: NDArray[np.bool_]) -> Array:
        for t in range(len(reward)):
            for i in range(len(self.running)):
                self.running[i] = self.gamma * self.running[i] + float(reward[t, i])
                self.returns.append(self.running[i])
                if ended[t, i]:
                    self.running[i] = 0.0
        scaled: Array = np.clip(reward / np.sqrt(np.var(self.returns) + 1e-8), -self.clip, self.clip)
        return scaled


def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns() -> None:
    rng = np.random.default_rng(0)
    scaler, plain = RewardScaler(3, gamma=0.9, clip=10.0), PlainScaler(3, gamma=0.9, clip=10.0)
    for iteration in range(4):
        reward = 2.0 + 10**iteration * rng.standard_normal((20, 3))
        ended = rng.random((20, 3)) < 0.15
        if iteration == 3:
            scaler.forget_episodes()
            plain.running = [0.0] * 3
        scaled = scaler(torch.from_numpy(reward), torch.from_numpy(ended))
        np.testing.assert_allclose(scaled, plain(reward, ended), rtol=1e-10)
        np.testing.assert_allclose(scaler.running, plain.running, rtol=1e-10)


def test_scaled_rewards_keep_their_sign_type_and_bound() -> None:
    scaler = RewardScaler(1, gamma=0.0, clip=1.5)
    # gamma 0: the returns are the rewards, mean 0 and variance (4 + 4 + 1 + 1 + 0) / 5 = 2.
    reward = torch.tensor([[2.0], [-2.0], [1.0], [-1.0], [0.0]])
    scaled = scaler(reward, torch.zeros(5, 1, dtype=torch.bool))
    assert scaled.dtype == torch.float32
    root = 2**-0.5
    np.testing.assert_allclose(scaled.flatten(), [2 * root, -2 * root, root, -root, 0.0], rtol=1e-6)
    assert RewardScaler(1, 0.0, clip=1.0)(reward, torch.zeros(5, 1, dtype=torch.bool)).abs().max() == 1.0


def test_a_saved_reward_scaler_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(1)
    scaler = RewardScaler(2, gamma=0.9, clip=10.0)
    none_ended = torch.zeros(10, 2, dtype=torch.bool)
    scaler(torch.from_numpy(rng.standard_normal((10, 2))), none_ended)
    twin = RewardScaler(2, gamma=0.9, clip=10.0)
    twin.load_state_dict(scaler.state_dict())
    reward = torch.from_numpy(rng.standard_normal((10, 2)))
    assert torch.equal(twin(reward, none_ended), scaler(reward, none_ended))


def test_scaling_alone_leaves_the_statistics_as_they_are() -> None:
    rng = np.random.default_rng(2)
    scaler = RewardScaler(2, gamma=0.9, clip=10.0)
    reward = torch.from_numpy(rng.standard_normal((10, 2)))
    scaled = scaler(reward, torch.zeros(10, 2, dtype=torch.bool))
    before = {key: value.clone() for key, value in scaler.state_dict().items()}
    assert torch.equal(scaler.scale(reward), scaled)
    assert all(torch.equal(value, before[key]) for key, value in scaler.state_dict().items())
