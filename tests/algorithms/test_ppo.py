from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from detent.algorithms.losses import make_policy_loss
from detent.algorithms.ppo import PPOLoss
from detent.config import Config, PPOConfig

# Clip 0.2:  min(r A, clip(r, 0.8, 1.2) A), and its derivative by log r, which is r A where r A is the smaller one.
#    r     A     r A   clipped A   min   derivative
CASES = [
    (1.5, 2.0, 2.4, 0.0),  # 3.0   2.4: good and already far enough, no further
    (1.5, -2.0, -3.0, -3.0),  # -3.0  -2.4: bad and more probable than before, go back
    (0.5, 2.0, 1.0, 1.0),  # 1.0   1.6: good and less probable than before, go back
    (0.5, -2.0, -1.6, 0.0),  # -1.0  -1.6: bad and already far enough
    (1.1, 2.0, 2.2, 2.2),  # inside the clip range both agree
    (1.1, -2.0, -2.2, -2.2),
    (0.9, 2.0, 1.8, 1.8),
    (0.9, -2.0, -1.8, -1.8),
]


@pytest.mark.parametrize(("ratio", "advantage", "surrogate", "derivative"), CASES)
def test_loss_and_gradient_on_either_side_of_the_clip(
    ratio: float, advantage: float, surrogate: float, derivative: float
) -> None:
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    policy_loss = PPOLoss(PPOConfig(clip=0.2))
    loss, metrics = policy_loss(log_ratio, advantages)
    assert loss.item() == pytest.approx(-surrogate, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    assert gradient.item() == pytest.approx(-derivative, rel=1e-12)
    assert metrics["clip_fraction"].item() == (abs(ratio - 1) > 0.2)


def test_loss_is_the_mean_over_transitions() -> None:
    ratios, advantages, surrogates, derivatives = (np.array(column) for column in zip(*CASES, strict=True))
    log_ratio = torch.from_numpy(np.log(ratios)).requires_grad_()
    policy_loss = PPOLoss(PPOConfig(clip=0.2))
    loss, metrics = policy_loss(log_ratio, torch.from_numpy(advantages))
    # -(2.4 - 3 + 1 - 1.6 + 2.2 - 2.2 + 1.8 - 1.8) / 8 = 1.2 / 8
    assert loss.item() == pytest.approx(0.15, rel=1e-12)
    assert loss.item() == pytest.approx(-surrogates.mean(), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    np.testing.assert_allclose(gradient, -derivatives / 8, rtol=1e-12)
    assert metrics["clip_fraction"].item() == 0.5
    assert not metrics["clip_fraction"].requires_grad


def test_at_ratio_1_the_gradient_is_the_policy_gradient() -> None:
    advantages = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    log_ratio = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    loss, metrics = PPOLoss(PPOConfig())(log_ratio, advantages)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    np.testing.assert_allclose(gradient, -advantages / 3, rtol=1e-12)
    assert metrics["clip_fraction"].item() == 0


def test_the_configured_clip_is_used() -> None:
    loss = make_policy_loss(Config(ppo=PPOConfig(clip=0.05)))
    value, _ = loss(torch.tensor([0.5], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))
    assert value.item() == pytest.approx(-1.05, rel=1e-12)
