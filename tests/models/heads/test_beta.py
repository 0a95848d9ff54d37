from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy import integrate, special, stats
from torch import Tensor

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads import make_head
from detent.models.heads.base import Head
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
RANGE = np.subtract(HIGH, LOW)
BATCH = 4
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Make constants of a head in float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make() -> Head:
    return make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="beta")).double()


def outputs_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def scipy_beta(outputs: Array) -> stats.rv_frozen:
    """The distribution of the action, on its own bounds."""
    pairs = 1 + np.logaddexp(0, outputs.reshape(BATCH, 3, 2))
    return stats.beta(pairs[..., 0], pairs[..., 1], loc=LOW, scale=RANGE)


def numerical_gradient(function: object, at: Array, step: float = 1e-6) -> Array:
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        gradient[index] = (function(at + shift).sum() - function(at - shift).sum()) / (2 * step)  # type: ignore[operator]
    return gradient


def test_density_entropy_and_gradients_are_those_of_scipy() -> None:
    head, outputs = make(), outputs_of(0).requires_grad_()
    params = head(outputs)
    choice = head.sample(params.detach(), torch.Generator().manual_seed(0))
    action = np.asarray(LOW) + RANGE * choice.numpy()
    log_prob, entropy = head.log_prob(params, choice), head.entropy(params)
    frozen = scipy_beta(outputs.detach().numpy())
    np.testing.assert_allclose(log_prob.detach(), frozen.logpdf(action), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(entropy.detach(), frozen.entropy(), rtol=1e-9, atol=1e-9)
    for value, expected in (
        (log_prob, lambda at: scipy_beta(at).logpdf(action)),
        (entropy, lambda at: scipy_beta(at).entropy()),
    ):
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        np.testing.assert_allclose(gradient, numerical_gradient(expected, outputs.detach().numpy()), atol=1e-6)


def test_kl_is_the_integral() -> None:
    head = make()
    old, new = outputs_of(1), outputs_of(2)
    found = head.kl(head(old), head(new))
    p = 1 + np.logaddexp(0, old.numpy().reshape(BATCH, 3, 2))
    q = 1 + np.logaddexp(0, new.numpy().reshape(BATCH, 3, 2))
    for row in range(BATCH):
        for dimension in range(3):
            first, second = stats.beta(*p[row, dimension]), stats.beta(*q[row, dimension])

            def integrand(x: float, first: stats.rv_frozen = first, second: stats.rv_frozen = second) -> float:
                return float(first.pdf(x) * (first.logpdf(x) - second.logpdf(x)))

            expected, _ = integrate.quad(integrand, 0, 1, limit=200)
            np.testing.assert_allclose(found[row, dimension], expected, rtol=1e-6, atol=1e-8)


def test_fisher_product_is_the_expected_product_of_scores() -> None:
    head, outputs = make(), outputs_of(3)
    params = head(outputs)
    tangent = torch.randn(params.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = head.fisher_product(params, tangent)
    for row in range(BATCH):
        for dimension in range(3):
            alpha, beta = params[row, dimension].tolist()
            frozen = stats.beta(alpha, beta)
            common = special.digamma(alpha + beta)

            def entry(
                i: int, j: int, a: float = alpha, b: float = beta, f: object = frozen, c: float = common
            ) -> float:
                def score(x: float, which: int) -> float:
                    return float(
                        np.log(x) - special.digamma(a) + c if which == 0 else np.log1p(-x) - special.digamma(b) + c
                    )

                def integrand(x: float) -> float:
                    return float(f.pdf(x)) * score(x, i) * score(x, j)  # type: ignore[attr-defined]

                return float(integrate.quad(integrand, 0, 1, limit=200)[0])

            matrix = np.array([[entry(0, 0), entry(0, 1)], [entry(1, 0), entry(1, 1)]])
            np.testing.assert_allclose(found[row, dimension], matrix @ tangent[row, dimension].numpy(), rtol=1e-5)


def test_samples_follow_the_distribution_and_the_generator() -> None:
    head, draws = make(), 5000
    params = head(outputs_of(5))[:1].expand(draws, 3, 2)
    choice = head.sample(params, torch.Generator().manual_seed(0))
    assert torch.equal(choice, head.sample(params, torch.Generator().manual_seed(0)))
    for dimension in range(3):
        alpha, beta = params[0, dimension].tolist()
        assert stats.kstest(choice[:, dimension].numpy(), stats.beta(alpha, beta).cdf).pvalue > 1e-3
    box = Box(np.asarray(LOW, np.float32), np.asarray(HIGH, np.float32))
    assert all(box.contains(action) for action in head.float().to_action(choice.float()).numpy())


def test_mode_and_mean_are_those_of_the_definition() -> None:
    head = make()
    params = head(outputs_of(6))
    alpha, beta = params.unbind(-1)
    centre = torch.tensor(LOW, dtype=torch.float64), torch.tensor(RANGE)
    np.testing.assert_allclose(
        head.to_action(head.mode(params)), centre[0] + centre[1] * (alpha - 1) / (alpha + beta - 2)
    )
    np.testing.assert_allclose(head.mean_action(params), scipy_beta(outputs_of(6).numpy()).mean(), rtol=1e-9)


@pytest.mark.parametrize("size", [-200.0, 1e4])
def test_extreme_outputs_and_the_bounds_stay_finite(size: float) -> None:
    head = make().float()
    outputs = torch.full((1, 6), size, requires_grad=True)
    params = head(outputs)
    for choice in (head.sample(params.detach(), torch.Generator().manual_seed(0)), head.mode(params.detach())):
        log_prob = head.log_prob(params, choice)
        (gradient,) = torch.autograd.grad(log_prob.sum(), outputs, retain_graph=True)
        assert log_prob.isfinite().all()
        assert gradient.isfinite().all()
    # The extremes that sampling can give.
    lowest = head.sample(head(torch.tensor([[-200.0, 1e8] * 3])), torch.Generator().manual_seed(0))
    highest = head.sample(head(torch.tensor([[1e8, -200.0] * 3])), torch.Generator().manual_seed(0))
    for choice in (lowest, highest):
        assert ((choice > 0) & (choice < 1)).all()
        assert head.log_prob(params, choice).isfinite().all()


@pytest.mark.parametrize("pair", [(-200.0, 5.0), (5.0, -200.0)])
def test_a_mode_at_a_bound_has_a_finite_density(pair: tuple[float, float]) -> None:
    # One of alpha and beta is 1 to rounding, so the density is largest at a bound, and 0 log 0 is not a number.
    head = make().float()
    outputs = torch.tensor([pair * 3], dtype=torch.float32, requires_grad=True)
    params = head(outputs)
    choice = head.mode(params.detach())
    log_prob = head.log_prob(params, choice)
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
    # Beta(1, b) has the density b at 0; 1 + softplus(5) = 6.0067.
    np.testing.assert_allclose(log_prob.detach()[0], np.log(6.0067 / RANGE), atol=1e-4)
    assert gradient.isfinite().all()
    np.testing.assert_allclose(head.to_action(choice)[0], LOW if pair[0] < 0 else HIGH, rtol=1e-5, atol=1e-5)


def test_a_discrete_space_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the action space is discrete, and the beta head draws real numbers"):
        make_head(ActionSpec((0.0,), (3.0,), discrete=True), HeadConfig(kind="beta"))
