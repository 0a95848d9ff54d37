from __future__ import annotations

from typing import Any

import pytest
import torch

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.spec import ActionSpec

HEADS: list[dict[str, Any]] = [
    {"kind": "categorical", "bins": 5},
    {"kind": "gaussian"},
    {"kind": "gaussian", "mean": "squashed"},
    {"kind": "gaussian", "log_std": "state-dependent"},
    {"kind": "loss-swap", "bins": 5},
]


@pytest.mark.parametrize("settings", HEADS, ids=str)
def test_the_gradient_of_weighted_log_probabilities_is_autograds(settings: dict[str, Any]) -> None:
    head = make_head(ActionSpec((-3.0, 0.0), (-1.0, 10.0)), HeadConfig(log_std_init=-0.4, **settings)).double()
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, head.num_outputs, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(7, generator=generator, dtype=torch.float64)
    params = head(outputs)
    choice = head.sample(params.detach(), generator)
    total = (weights[:, None] * head.log_prob(params, choice)).sum()
    expected, *own = torch.autograd.grad(total, [outputs, *head.parameters()])
    for parameter in head.parameters():
        # What was there before must not matter.
        parameter.grad = torch.full_like(parameter, 7.0)
    with torch.no_grad():
        likelihood = head.likelihood(outputs, choice)
        torch.testing.assert_close(likelihood.log_prob, head.log_prob(params, choice), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(likelihood.entropy, head.entropy(params), rtol=1e-10, atol=1e-12)
        gradient = likelihood.backward(weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    for parameter, own_gradient in zip(head.parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, own_gradient, rtol=1e-10, atol=1e-12)
