"""What holds for every built-in head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads import HEADS, make_head
from detent.spec import ActionSpec

ACTION = ActionSpec((-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4))
SETTINGS: list[dict[str, Any]] = [
    *({"kind": name, "bins": 5} for name in HEADS.names() if HEADS.is_builtin(name)),
    {"kind": "categorical", "bins": 2},
    *({"kind": kind, "bins_per_dimension": (2, 5, 3)} for kind in ("categorical", "ordinal", "unimodal", "smooth")),
    {"kind": "gaussian", "mean": "squashed", "log_std": "state-dependent"},
    {"kind": "squashed-gaussian", "log_std": "state-dependent"},
]
every_head = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Make constants of a head in float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@every_head
def test_fisher_product_is_the_curvature_of_the_kl(settings: dict[str, Any]) -> None:
    head = make_head(ACTION, HeadConfig(log_std_init=-0.4, **settings)).double()
    outputs, tangent = torch.randn(2, 1, head.num_outputs, generator=torch.Generator().manual_seed(0))
    params, change = torch.autograd.functional.jvp(head, outputs, tangent)
    _, product = torch.autograd.functional.vjp(head, outputs, head.fisher_product(params, change))

    def slope(at: Tensor) -> Tensor:
        leaf = at.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(head.kl(params.detach(), head(leaf)).sum(), leaf)
        return gradient

    step = 1e-4
    curvature = (slope(outputs + step * tangent) - slope(outputs - step * tangent)) / (2 * step)
    torch.testing.assert_close(product.detach(), curvature, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(slope(outputs), torch.zeros_like(outputs), rtol=0, atol=1e-12)


@every_head
def test_the_expected_score_is_zero_over_samples(settings: dict[str, Any]) -> None:
    # Sampling and log-probabilities are of one distribution: otherwise policy gradients are biased.
    head, draws = make_head(ACTION, HeadConfig(log_std_init=-0.4, **settings)).double(), 4000
    outputs = torch.randn(1, head.num_outputs, generator=torch.Generator().manual_seed(1)).repeat(draws, 1)
    leaf = outputs.requires_grad_()
    params = head(leaf)
    choice = head.sample(params.detach(), torch.Generator().manual_seed(2))
    (score,) = torch.autograd.grad(head.log_prob(params, choice).sum(), leaf)
    deviation = score.std(0) / draws**0.5
    assert (score.mean(0).abs() <= 5 * deviation + 1e-12).all()
    assert (score.std(0) > 0).any()


@pytest.mark.parametrize("kind", ["categorical", "ordinal", "gaussian", "squashed-gaussian", "beta", "loss-swap"])
def test_a_head_without_options_refuses_them(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"head.options has temperature; head '{kind}' takes no options"):
        make_head(ACTION, HeadConfig(kind=kind, options={"temperature": 1.0}))


@pytest.mark.parametrize("kind", ["unimodal", "smooth", "coarse-fine"])
def test_a_head_with_options_refuses_another_heads(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'head.options.sigma'"):
        make_head(ACTION, HeadConfig(kind=kind, options={"sigma": 1.0}))


def test_the_largest_number_of_bins_fits_the_stored_type_and_one_more_is_refused() -> None:
    head = make_head(ActionSpec((-1.0,), (3.0,)), HeadConfig(bins=32767))
    outputs = torch.zeros(1, 32767)
    outputs[0, -1] = 100.0
    for choice in (head.mode(head(outputs)), head.sample(head(outputs), torch.Generator().manual_seed(0))):
        assert choice.item() == 32766
        assert head.to_action(choice).item() == 3
    with pytest.raises(ConfigError, match=r"head.bins is 32768; at most 32767 bins per dimension are possible"):
        HeadConfig(bins=32768)
    with pytest.raises(ConfigError, match=r"the action space has 40000 values in a dimension; at most 32767 work"):
        make_head(ActionSpec((0.0,), (39999.0,), discrete=True), HeadConfig())
