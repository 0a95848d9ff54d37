from __future__ import annotations

import math

import pytest
import torch

from detent.algorithms.losses import make_policy_loss
from detent.algorithms.spo import SPOLoss
from detent.config import Config, SPOConfig


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "derivative"),
    [
        # r A - |A| (r - 1)^2 / 0.4, and its derivative by log r: r (A - |A| (r - 1) / 0.2)
        (1.0, 2.0, 2.0, 2.0),
        (1.0, -2.0, -2.0, -2.0),
        (1.2, 2.0, 2.4 - 0.2, 0.0),  # the optimum for A > 0: flat
        (0.8, -2.0, -1.6 - 0.2, 0.0),  # the optimum for A < 0
        (1.5, 2.0, 3.0 - 1.25, 1.5 * (2 - 5)),  # too far: pulled back, where PPO's clip would leave it alone
        (0.5, -2.0, -1.0 - 1.25, 0.5 * (-2 + 5)),
    ],
)
def test_loss_and_gradient_by_hand(ratio: float, advantage: float, objective: float, derivative: float) -> None:
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    policy_loss = SPOLoss(SPOConfig(epsilon=0.2))
    loss, metrics = policy_loss(log_ratio, advantages)
    assert loss.item() == pytest.approx(-objective, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    assert gradient.item() == pytest.approx(-derivative, rel=1e-9, abs=1e-12)
    assert metrics["clip_fraction"].item() == (abs(ratio - 1) > 0.2 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
@pytest.mark.parametrize(("advantage", "choice"), [(3.0, 0), (-3.0, 0), (0.01, 1), (-0.5, 1)])
def test_gradient_ascent_on_one_state_finds_ratio_1_plus_epsilon_sign_of_advantage(
    advantage: float, choice: int, epsilon: float
) -> None:
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    old = logits.detach().log_softmax(-1)[choice]
    loss_of = SPOLoss(SPOConfig(epsilon=epsilon))
    optimizer = torch.optim.SGD([logits], lr=0.05 / abs(advantage))
    for _ in range(1000):
        log_ratio = logits.log_softmax(-1)[choice] - old
        loss, _ = loss_of(log_ratio[None], torch.tensor([advantage], dtype=torch.float64))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    ratio = float((logits.detach().log_softmax(-1)[choice] - old).exp())
    assert ratio == pytest.approx(1 + epsilon * math.copysign(1, advantage), abs=1e-6)


@pytest.mark.parametrize("log_ratio", [-1e4, 89.0, 1e4])
def test_a_wild_ratio_overflows_neither_loss_nor_gradient(log_ratio: float) -> None:
    wild = torch.tensor([log_ratio, 0.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0])
    loss, _ = SPOLoss(SPOConfig())(wild, advantages)
    (gradient,) = torch.autograd.grad(loss, wild)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_the_configured_epsilon_is_used() -> None:
    loss, _ = make_policy_loss(Config(algo="spo", spo=SPOConfig(epsilon=0.5)))(
        torch.tensor([math.log(2.0)], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    )
    # 2 - 1 / (2 x 0.5)
    assert loss.item() == pytest.approx(-1.0, rel=1e-12)
