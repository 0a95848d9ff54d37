from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from detent.config import CriticConfig
from detent.models.critics import make_critic_head
from detent.models.critics.hl_gauss import HLGaussCritic

LOW, HIGH, BINS = -2.0, 3.0, 10


def make(**options: Any) -> HLGaussCritic:
    critic = make_critic_head(CriticConfig(head="hl-gauss", head_options=options)).double()
    assert isinstance(critic, HLGaussCritic)
    return critic


@pytest.mark.parametrize("sigma", [0.3, 0.75, 2.0])
@pytest.mark.parametrize("value", [-2.0, -1.9, 0.0, 0.26, 1.25, 3.0])
def test_a_target_is_the_gaussians_mass_in_each_bin(value: float, sigma: float) -> None:
    critic = make(low=LOW, high=HIGH, bins=BINS, sigma=sigma)
    edges = np.linspace(LOW, HIGH, BINS + 1)
    # Bins are half a unit wide.
    density = norm(value, sigma * 0.5).pdf
    masses = [quad(density, left, right, epsabs=1e-13)[0] for left, right in pairwise(edges)]
    expected = np.array(masses) / sum(masses)
    target = critic.target(torch.tensor([value], dtype=torch.float64))
    np.testing.assert_allclose(target[0].numpy(), expected, rtol=1e-7, atol=1e-10)
    assert target.sum().item() == pytest.approx(1, abs=1e-12)


def test_the_expected_target_is_the_return_away_from_the_ends() -> None:
    critic = make()
    returns = torch.linspace(-95, 95, 1001, dtype=torch.float64)
    # Uneven by how the bins lie around the return: at most a hundred-thousandth of a bin for this sigma.
    torch.testing.assert_close(critic.target(returns) @ critic.bins, returns, rtol=0, atol=1e-5)


def test_by_default_there_are_half_units_around_zero() -> None:
    critic = make()
    assert critic.num_outputs == 401
    assert critic.bins[200].item() == pytest.approx(0, abs=1e-6)
    # 200 / 401, and three quarters of it for the Gaussian.
    assert critic.bins[201].item() == pytest.approx(0.498753, abs=1e-5)
    spread = (critic.target(torch.zeros(1, dtype=torch.float64))[0] * critic.bins.square()).sum().sqrt()
    # The Gaussian's variance, and a bin's own (Sheppard's correction).
    assert spread.item() == pytest.approx(0.498753 * math.sqrt(0.75**2 + 1 / 12), rel=1e-3)
