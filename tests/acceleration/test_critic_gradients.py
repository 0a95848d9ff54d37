"""Closed forms of the critics' gradients against what autograd makes of their losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from detent.acceleration.critic_gradients import CRITIC_GRADIENTS, autograd_gradient
from detent.config import CriticConfig
from detent.models.critics import CRITICS, make_critic_head


def test_every_built_in_critic_has_a_fast_form() -> None:
    assert {CRITICS.get(name) for name in CRITICS.names() if CRITICS.is_builtin(name)} == set(CRITIC_GRADIENTS)


@pytest.mark.parametrize(("value", "derivative"), [(0.5, 0.0), (-0.5, -1.5), (0.1, -0.9), (3.0, 2.0)])
def test_a_value_held_by_the_clip_has_no_gradient(value: float, derivative: float) -> None:
    # Old value 0, return 1, clip 0.2: the cases of tests/models/critics/test_scalar.py.
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    critic = make_critic_head(CriticConfig())
    outputs = torch.tensor([[value]], dtype=torch.float64)
    closed_form = CRITIC_GRADIENTS[type(critic)](critic, outputs, one, zero, 0.2)
    assert closed_form.item() == pytest.approx(derivative, rel=1e-12)


CASES: list[tuple[str, dict[str, Any], float]] = [
    ("scalar", {}, 0.0),
    ("scalar", {}, 0.2),
    ("scalar", {}, 1e3),
    ("hl-gauss", {}, 0.0),
    ("two-hot", {}, 0.0),
    # One return in three is outside of these.
    ("hl-gauss", {"low": -1.0, "high": 1.0, "bins": 5}, 0.0),
    ("two-hot", {"low": -1.0, "high": 1.0, "bins": 5}, 0.0),
]


@pytest.mark.parametrize(("head", "options", "clip"), CASES)
def test_the_gradient_is_autograds(head: str, options: dict[str, Any], clip: float) -> None:
    critic = make_critic_head(CriticConfig(head=head, head_options=options)).double()
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(500, critic.num_outputs, generator=generator, dtype=torch.float64)
    old, returns = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    closed_form = CRITIC_GRADIENTS[type(critic)](critic, outputs, returns, old, clip)
    torch.testing.assert_close(
        autograd_gradient(critic, outputs, returns, old, clip), closed_form, rtol=1e-9, atol=1e-12
    )
    leaf = outputs.requires_grad_()
    (gradient,) = torch.autograd.grad(critic.loss(leaf, returns, old, clip), leaf)
    torch.testing.assert_close(closed_form / 500, gradient, rtol=1e-9, atol=1e-15)
