"""The second moment of the policy gradient is what the derivations beside the numbers say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from detent.paper.gradient_moments import (
    categorical_actor,
    exact_second_moment,
    gaussian_actor,
    sampled_second_moment,
    squared_gradients,
)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_gaussian_has_its_mean_and_variance_in_closed_form() -> None:
    actor = gaussian_actor(double(0.5, 2.0), total_return=3.0)
    # R^2 / sigma^2 = 9 / 0.25 and 9 / 4. With z standard normal, |g|^2 = R^2 z^2 / sigma^2 and Var z^2 = 2, so the
    # variances are 2 (R^2 / sigma^2)^2.
    assert actor.second_moment == pytest.approx(36 + 2.25, rel=1e-14)
    mean, variance = exact_second_moment(actor)
    assert mean.tolist() == pytest.approx([36, 2.25], rel=1e-14)
    assert variance.tolist() == pytest.approx([2 * 36**2, 2 * 2.25**2], rel=1e-13)


def test_a_gaussians_gradient_is_the_standardized_choice_over_sigma() -> None:
    actor = gaussian_actor(double(0.5, 2.0), total_return=3.0)
    # g = R a / sigma^2 at mean 0: 3 * 0.1 / 0.25 = 1.2 and 3 * -2 / 4 = -1.5.
    squares = squared_gradients(actor, double(0.1, -2.0)[None])
    assert squares.tolist()[0] == pytest.approx([1.44, 2.25], rel=1e-14)


def test_a_categorical_has_its_mean_and_variance_in_closed_form() -> None:
    p = [[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    actor = categorical_actor(double(*p[0], *p[1]).view(2, 3).log() + 7.0, total_return=2.0)
    # |p|^2 = 3/8, so |e_j - p|^2 = 1 + 3/8 - 2 p_j is 3/8 or 7/8, each with probability 1/2: mean 5/8, variance 1/16.
    # The uniform one is always at 1 - 1/3. R^2 = 4 goes in once, and squared into the variance.
    assert squared_gradients(actor, actor.choices).T.tolist() == [
        pytest.approx([1.5, 3.5, 3.5], rel=1e-14),
        pytest.approx([8 / 3] * 3, rel=1e-14),
    ]
    mean, variance = exact_second_moment(actor)
    assert mean.tolist() == pytest.approx([2.5, 8 / 3], rel=1e-14)
    assert variance.tolist() == pytest.approx([1.0, 0.0], abs=1e-14)
    assert actor.second_moment == pytest.approx(2.5 + 8 / 3, rel=1e-14)


def test_sampling_approaches_the_mean() -> None:
    generator = torch.Generator().manual_seed(3)
    # Means and variances as above.
    categorical = categorical_actor(double(0.5, 0.25, 0.25).log()[None], total_return=2.0)
    assert abs(sampled_second_moment(categorical, 10_000, generator) - 2.5) < 4 * math.sqrt(1.0 / 10_000)
    gaussian = gaussian_actor(double(0.5), total_return=3.0)
    assert abs(sampled_second_moment(gaussian, 10_000, generator) - 36) < 4 * math.sqrt(2 * 36**2 / 10_000)


@pytest.mark.parametrize("samples", [100, 1250, 1251, 3000])
def test_every_sample_counts_once_however_many_fit_in_memory(samples: int) -> None:
    # 800 outputs are worked on 1250 at a time; a uniform policy has |g|^2 = m (1 - 1/K) whatever is drawn.
    actor = categorical_actor(torch.zeros(2, 400, dtype=torch.float64))
    sampled = sampled_second_moment(actor, samples, torch.Generator().manual_seed(0))
    assert sampled == pytest.approx(2 * (1 - 1 / 400), rel=1e-12)
