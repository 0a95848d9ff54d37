from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from detent.config import CriticConfig
from detent.models.critics import make_critic_head
from detent.models.critics.scalar import ScalarCritic

# Old value 0, return 1, clip 0.2.
#  value  (v - 1)^2   held   (held - 1)^2   larger   derivative of the larger by v
CASES = [
    (0.5, 0.64, 0.0),  # 0.25    0.2   0.64: moved far enough towards the return
    (-0.5, 2.25, -3.0),  # 2.25   -0.2   1.44: moved away, comes back: 2 (v - 1)
    (0.1, 0.81, -1.8),  # 0.81    0.1   0.81: inside the range
    (3.0, 4.0, 4.0),  # 4.00    0.2   0.64: moved far beyond the return
]


def loss_of(value: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
    """Of values `[B]`, which the network gives as `[B, 1]`."""
    critic = make_critic_head(CriticConfig())
    assert isinstance(critic, ScalarCritic)
    return critic.loss(value.unsqueeze(-1), returns, old_value, clip)


@pytest.mark.parametrize(("value", "error", "derivative"), CASES)
def test_clipped_loss_takes_the_worse_of_both_errors(value: float, error: float, derivative: float) -> None:
    v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    loss = loss_of(v, one, zero, clip=0.2)
    assert loss.item() == pytest.approx(error / 2, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, v)
    assert gradient.item() == pytest.approx(derivative / 2, rel=1e-12)


def test_loss_is_half_the_mean_over_transitions() -> None:
    values = torch.tensor([case[0] for case in CASES], dtype=torch.float64)
    loss = loss_of(values, torch.ones_like(values), torch.zeros_like(values), clip=0.2)
    # (0.64 + 2.25 + 0.81 + 4) / 4 / 2
    assert loss.item() == pytest.approx(0.9625, rel=1e-12)


def test_without_clip_it_is_half_the_mean_squared_error() -> None:
    generator = torch.Generator().manual_seed(0)
    value, old, returns = 5 * torch.randn(3, 50, generator=generator, dtype=torch.float64)
    expected = 0.5 * np.mean((value.numpy() - returns.numpy()) ** 2)
    assert loss_of(value, returns, old, clip=0.0).item() == pytest.approx(expected, rel=1e-12)
    # A clip that no prediction reaches changes nothing.
    assert loss_of(value, returns, old, clip=1e3).item() == pytest.approx(expected, rel=1e-12)


def test_the_value_is_the_networks_one_output() -> None:
    critic = make_critic_head(CriticConfig())
    assert critic.num_outputs == 1
    assert critic.clips_values
    assert list(critic.parameters()) == []
    assert critic.value(torch.tensor([[3.0], [-1.0]])).tolist() == [3.0, -1.0]
