from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from detent.config import CriticConfig
from detent.models.critics import make_critic_head
from detent.models.critics.two_hot import TwoHotCritic, symexp, symlog


def make(**options: Any) -> TwoHotCritic:
    critic = make_critic_head(CriticConfig(head="two-hot", head_options=options)).double()
    assert isinstance(critic, TwoHotCritic)
    return critic


def test_symlog_and_symexp_by_hand() -> None:
    # log 2, log 4, log 1.5 and back.
    returns = torch.tensor([1.0, -3.0, 0.5, 0.0], dtype=torch.float64)
    logs = torch.tensor([0.6931471805599453, -1.3862943611198906, 0.4054651081081644, 0.0], dtype=torch.float64)
    torch.testing.assert_close(symlog(returns), logs, rtol=1e-15, atol=0)
    torch.testing.assert_close(symexp(logs), returns, rtol=1e-15, atol=1e-16)
    small = torch.tensor([1e-12], dtype=torch.float64)
    assert symexp(symlog(small)).item() == pytest.approx(1e-12, rel=1e-12)


def test_bins_are_even_in_symlog() -> None:
    critic = make(low=-15.0, high=3.0, bins=7)
    # From -log 16 to log 4: steps of log 2.
    np.testing.assert_allclose(critic.bins.numpy(), [-15, -7, -3, -1, 0, 1, 3], rtol=1e-6, atol=1e-6)


def test_the_expected_target_is_the_return() -> None:
    critic = make()
    returns = torch.cat([torch.linspace(-100, 100, 1001, dtype=torch.float64), critic.bins])
    target = critic.target(returns)
    torch.testing.assert_close(target @ critic.bins, returns, rtol=1e-13, atol=1e-13)
    assert (target >= 0).all()
    assert ((target > 0).sum(-1) <= 2).all()
    torch.testing.assert_close(target.sum(-1), torch.ones_like(returns), rtol=1e-14, atol=0)


def test_neighbours_share_by_distance() -> None:
    critic = make(low=-15.0, high=3.0, bins=7)
    target = critic.target(torch.tensor([-6.0, 0.25, -15.0, 3.0], dtype=torch.float64))
    expected: list[list[float]] = [
        # -6 lies a quarter of the way from -7 to -3.
        [0, 0.75, 0.25, 0, 0, 0, 0],
        [0, 0, 0, 0, 0.75, 0.25, 0],
        [1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-6, atol=1e-6)
