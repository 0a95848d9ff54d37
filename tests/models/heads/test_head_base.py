"""What a head has by default, which is sampled, against the exact forms of built-in heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.models.heads.base import SAMPLES, Head
from detent.spec import ActionSpec

ROWS = 4000
HEADS: list[dict[str, Any]] = [
    {"kind": "categorical", "bins": 5},
    {"kind": "gaussian", "log_std": "state-dependent", "log_std_init": -0.4},
]
every_head = pytest.mark.parametrize("settings", HEADS, ids=["categorical", "gaussian"])


def make(settings: dict[str, Any]) -> Head:
    return make_head(ActionSpec((-3.0, 0.0), (-1.0, 10.0)), HeadConfig(**settings)).double()


def random_outputs(head: Head, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(1, head.num_outputs, generator=generator, dtype=torch.float64)


def near(head: Head, seed: int) -> tuple[Tensor, Tensor]:
    """Outputs of two policies as near as an update leaves them; of distant ones, the ratio has no variance."""
    before = random_outputs(head, 0)
    return before, before + 0.2 * random_outputs(head, seed)


def assert_mean_within_monte_carlo_error(rows: Tensor, expected: Tensor) -> None:
    """`rows` are independent estimates of `expected`, each of SAMPLES draws."""
    error = rows.std(0) / len(rows) ** 0.5
    assert ((rows.mean(0) - expected).abs() <= 4 * error + 1e-12).all()
    # The test says something: the error is small beside what is estimated.
    assert error.max() < 0.05 * expected.abs().max()


@every_head
@pytest.mark.parametrize("seed", [1, 2])
def test_sampled_kl_is_the_exact_one_on_average(settings: dict[str, Any], seed: int) -> None:
    head = make(settings)
    old, new = map(head, near(head, seed))
    sampled = Head.kl(head, old.expand(ROWS, *old.shape[1:]), new.expand(ROWS, *new.shape[1:]))
    assert sampled.shape == (ROWS, 2)
    assert (sampled >= 0).all()
    assert_mean_within_monte_carlo_error(sampled, head.kl(old, new)[0])
    assert (Head.kl(head, old, old) == 0).all()


@every_head
def test_sampled_fisher_product_is_the_exact_one_on_average(settings: dict[str, Any]) -> None:
    head = make(settings)
    # A tangent that a change of the network's outputs makes: log-probabilities keep adding up to 1.
    dual: Any = torch.func.jvp(head, (random_outputs(head, 0),), (random_outputs(head, 3),))
    params, tangent = dual
    rows = (ROWS, *params.shape[1:])
    sampled = Head.fisher_product(head, params.expand(rows), tangent.expand(rows))
    assert sampled.shape == rows
    assert_mean_within_monte_carlo_error(sampled, head.fisher_product(params, tangent)[0])


@every_head
def test_samples_are_the_same_each_time_and_leave_torchs_generator_alone(settings: dict[str, Any]) -> None:
    head = make(settings)
    old, new = map(head, near(head, 1))
    state = torch.get_rng_state()
    first = Head.kl(head, old, new), Head.fisher_product(head, old, new)
    again = Head.kl(head, old, new), Head.fisher_product(head, old, new)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(head._samples(old)) == SAMPLES


@every_head
def test_sampled_fisher_product_is_linear_symmetric_and_never_negative(settings: dict[str, Any]) -> None:
    # What conjugate gradients need of it, which an estimate with fresh samples each time would not be.
    head = make(settings)
    params = head(random_outputs(head, 0))
    one, other = torch.randn(2, *params.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def product(tangent: Tensor) -> Tensor:
        return Head.fisher_product(head, params, tangent)

    torch.testing.assert_close(product(2 * one - 3 * other), 2 * product(one) - 3 * product(other))
    torch.testing.assert_close((one * product(other)).sum(), (other * product(one)).sum())
    assert (one * product(one)).sum() >= 0


@every_head
def test_the_gradient_of_the_sampled_kl_in_the_new_distribution_is_the_exact_one_on_average(
    settings: dict[str, Any],
) -> None:
    head = make(settings)
    before, outputs = near(head, 1)
    old = head(before)
    rows = outputs.expand(ROWS, -1).clone().requires_grad_()
    (sampled,) = torch.autograd.grad(Head.kl(head, old.expand(ROWS, *old.shape[1:]), head(rows)).sum(), rows)
    leaf = outputs.clone().requires_grad_()
    (exact,) = torch.autograd.grad(head.kl(old, head(leaf)).sum(), leaf)
    assert_mean_within_monte_carlo_error(sampled, exact[0])


def test_a_head_says_nothing_further_unless_it_wants_to() -> None:
    assert make(HEADS[0]).statistics(torch.zeros(3, 2)) == {}
