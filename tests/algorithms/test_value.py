from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.acceleration.likelihoods import value_gradient
from detent.algorithms import value_loss

# Old value 0, target 1, clip 0.2.
#  value  (v - 1)^2   moved   (moved - 1)^2   larger   derivative of the larger by v
CASES = [
    (0.5, 0.64, 0.0),  # 0.25    0.2   0.64: moved far enough towards the target
    (-0.5, 2.25, -3.0),  # 2.25   -0.2   1.44: moved away, comes back: 2 (v - 1)
    (0.1, 0.81, -1.8),  # 0.81    0.1   0.81: inside the range
    (3.0, 4.0, 4.0),  # 4.00    0.2   0.64: moved far beyond the target
]


@pytest.mark.parametrize(("value", "error", "derivative"), CASES)
def test_clipped_loss_takes_the_worse_of_both_errors(value: float, error: float, derivative: float) -> None:
    v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    loss, closed_form = value_loss(v, zero, one, clip=0.2), value_gradient(v.detach(), zero, one, clip=0.2)
    assert loss.item() == pytest.approx(error / 2, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, v)
    assert gradient.item() == pytest.approx(derivative / 2, rel=1e-12)
    assert closed_form.item() == pytest.approx(derivative / 2, rel=1e-12)


def test_loss_is_half_the_mean_over_transitions() -> None:
    values = torch.tensor([case[0] for case in CASES], dtype=torch.float64)
    loss = value_loss(values, torch.zeros_like(values), torch.ones_like(values), clip=0.2)
    # (0.64 + 2.25 + 0.81 + 4) / 4 / 2
    assert loss.item() == pytest.approx(0.9625, rel=1e-12)


def test_without_clip_it_is_half_the_mean_squared_error() -> None:
    generator = torch.Generator().manual_seed(0)
    value, old, target = 5 * torch.randn(3, 50, generator=generator, dtype=torch.float64)
    expected = 0.5 * np.mean((value.numpy() - target.numpy()) ** 2)
    assert value_loss(value, old, target, clip=0.0).item() == pytest.approx(expected, rel=1e-12)
    # A clip that no prediction reaches changes nothing.
    assert value_loss(value, old, target, clip=1e3).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("clip", [0.0, 0.2, 1e3])
def test_the_gradient_is_autograds(clip: float) -> None:
    value, old, target = torch.randn(3, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    closed_form = value_gradient(value, old, target, clip)
    (gradient,) = torch.autograd.grad(value_loss(value.requires_grad_(), old, target, clip), value)
    torch.testing.assert_close(closed_form / 500, gradient, rtol=1e-9, atol=1e-15)
