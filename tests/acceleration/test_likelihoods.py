"""Closed forms against what autograd makes of the plain ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from detent.acceleration.likelihoods import (
    LIKELIHOODS,
    LOSS_GRADIENTS,
    autograd_likelihood,
    draw,
    ppo_gradient,
    spo_gradient,
)
from detent.algorithms.ppo import PPOLoss
from detent.algorithms.spo import SPOLoss
from detent.config import HeadConfig, PPOConfig, SPOConfig
from detent.models.heads import HEADS as REGISTERED
from detent.models.heads import make_head
from detent.models.heads.base import Head
from detent.spec import ActionSpec

HEADS: list[dict[str, Any]] = [
    *({"kind": kind, "bins": 9} for kind in ("categorical", "ordinal", "unimodal", "coarse-fine", "loss-swap")),
    {"kind": "smooth", "bins": 9, "options": {"rank": 5}},
    *({"kind": kind, "bins_per_dimension": (3, 9)} for kind in ("categorical", "ordinal", "unimodal", "smooth")),
    *({"kind": kind, "bins": 9, "spacing": "mu-law"} for kind in ("categorical", "ordinal", "loss-swap")),
    # One of four coarse values has fewer positions than the others.
    {"kind": "coarse-fine", "bins": 11, "options": {"coarse": 4}},
    {"kind": "unimodal", "bins": 9, "options": {"learn_temperature": False, "temperature": 0.5}},
    {"kind": "beta"},
    {"kind": "squashed-gaussian"},
    {"kind": "squashed-gaussian", "log_std": "state-dependent"},
    {"kind": "gaussian"},
    {"kind": "gaussian", "mean": "squashed"},
    {"kind": "gaussian", "log_std": "state-dependent"},
    {"kind": "gaussian", "mean": "squashed", "log_std": "state-dependent"},
    # Of log standard deviations from N(-0.4, 1), three in ten are beyond either bound.
    {"kind": "gaussian", "log_std": "state-dependent", "log_std_min": -0.9, "log_std_max": 0.1},
]
every_head = pytest.mark.parametrize("settings", HEADS, ids=str)


def make(settings: dict[str, Any]) -> tuple[Head, Tensor]:
    """A head in float64 and outputs of a network for it."""
    head = make_head(ActionSpec((-3.0, 0.0), (-1.0, 10.0)), HeadConfig(log_std_init=-0.4, **settings)).double()
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, head.num_outputs, generator=generator, dtype=torch.float64, requires_grad=True)
    return head, outputs


def test_every_built_in_head_has_a_fast_form_and_is_tested() -> None:
    names = {name for name in REGISTERED.names() if REGISTERED.is_builtin(name)}
    assert {REGISTERED.get(name) for name in names} == set(LIKELIHOODS)
    assert {settings["kind"] for settings in HEADS} == names


@pytest.mark.parametrize("form", ["its own", "autograd"])
@every_head
def test_the_gradient_of_weighted_log_probabilities_is_autograds(settings: dict[str, Any], form: str) -> None:
    head, outputs = make(settings)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(7, generator=generator, dtype=torch.float64)
    params = head(outputs)
    choice = head.sample(params.detach(), generator)
    total = (weights[:, None] * head.log_prob(params, choice)).sum()
    expected, *own = torch.autograd.grad(total, [outputs, *head.parameters()])
    for parameter in head.parameters():
        # What was there before must not matter.
        parameter.grad = torch.full_like(parameter, 7.0)
    likelihood_of = LIKELIHOODS[type(head)] if form == "its own" else autograd_likelihood
    with torch.no_grad():
        likelihood = likelihood_of(head, outputs, choice)
        torch.testing.assert_close(likelihood.log_prob, head.log_prob(params, choice), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(likelihood.entropy, head.entropy(params), rtol=1e-10, atol=1e-12)
        gradient = likelihood.backward(weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    for parameter, own_gradient in zip(head.parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, own_gradient, rtol=1e-10, atol=1e-12)


@every_head
def test_drawing_is_sampling_and_asking_for_the_log_probability(settings: dict[str, Any]) -> None:
    head, outputs = make(settings)
    with torch.no_grad():
        choice, log_prob = draw(head, outputs, torch.Generator().manual_seed(2))
        params = head(outputs)
        expected = head.sample(params, torch.Generator().manual_seed(2))
        assert choice.dtype == expected.dtype
        torch.testing.assert_close(choice, expected, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(log_prob, head.log_prob(params, choice), rtol=1e-10, atol=1e-12)


LOSSES = [PPOLoss(PPOConfig(clip=0.2)), SPOLoss(SPOConfig(epsilon=0.2))]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=["ppo", "spo"])


@every_loss
@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5])
def test_the_gradient_of_a_loss_is_autograds_on_either_side_of_the_clip(
    ratio: float, advantage: float, loss: PPOLoss | SPOLoss
) -> None:
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    closed_form = LOSS_GRADIENTS[type(loss)](loss, log_ratio.detach(), advantages)
    (gradient,) = torch.autograd.grad(loss(log_ratio, advantages)[0], log_ratio)
    torch.testing.assert_close(closed_form, gradient, rtol=1e-9, atol=1e-12)


@every_loss
def test_the_gradient_of_a_loss_is_that_of_the_sum_over_transitions(loss: PPOLoss | SPOLoss) -> None:
    log_ratio, advantages = torch.randn(2, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_ratio = (0.3 * log_ratio).requires_grad_()
    closed_form = LOSS_GRADIENTS[type(loss)](loss, log_ratio.detach(), advantages)
    (gradient,) = torch.autograd.grad(loss(log_ratio, advantages)[0], log_ratio)
    torch.testing.assert_close(closed_form / 500, gradient, rtol=1e-9, atol=1e-15)


def test_at_ratio_1_ppos_gradient_is_the_policy_gradient() -> None:
    advantages = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    closed_form = ppo_gradient(PPOLoss(PPOConfig()), torch.zeros(3, dtype=torch.float64), advantages)
    torch.testing.assert_close(closed_form, -advantages, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("log_ratio", [-1e4, 89.0, 1e4])
def test_a_wild_ratio_does_not_overflow_spos_gradient(log_ratio: float) -> None:
    loss, wild = SPOLoss(SPOConfig()), torch.tensor([log_ratio, 0.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0])
    closed_form = spo_gradient(loss, wild.detach(), advantages)
    assert closed_form.isfinite().all()
    (gradient,) = torch.autograd.grad(loss(wild, advantages)[0], wild)
    torch.testing.assert_close(closed_form / 2, gradient)
