from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from scipy import integrate, stats
from torch import Tensor

from detent.config import Config, HeadConfig, validate
from detent.errors import ConfigError
from detent.models.heads import make_head
from detent.models.heads.base import Head
from detent.models.heads.gaussian import DiagonalGaussian
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
CENTRE, HALF = (-2.0, 5.0, 0.0), (1.0, 5.0, 0.4)
BATCH = 4


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Make constants of a head in float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make() -> Head:
    return make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="squashed-gaussian", log_std="state-dependent")).double()


def outputs_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.7 * torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)


def density(action: float, mean: float, std: float, dimension: int) -> float:
    """The density of the action: the normal density at atanh of its position, times the slope of atanh there."""
    position = (action - CENTRE[dimension]) / HALF[dimension]
    slope = 1 / (HALF[dimension] * (1 - position**2))
    return float(stats.norm.pdf(np.arctanh(position), mean, std) * slope)


def moments(outputs: Tensor) -> tuple[list[list[float]], list[list[float]]]:
    """Mean and standard deviation by row and dimension."""
    return outputs[:, :3].tolist(), outputs[:, 3:].exp().tolist()


def test_log_prob_is_the_density_of_the_action() -> None:
    head, outputs = make(), outputs_of(0)
    params = head(outputs)
    choice = head.sample(params, torch.Generator().manual_seed(0))
    action, (mean, std) = head.to_action(choice).tolist(), moments(outputs)
    found = head.log_prob(params, choice)
    for row, dimension in np.ndindex(BATCH, 3):
        expected = np.log(density(action[row][dimension], mean[row][dimension], std[row][dimension], dimension))
        np.testing.assert_allclose(found[row, dimension], expected, rtol=1e-6, atol=1e-6)


def test_entropy_and_expected_action_are_the_integrals() -> None:
    head, outputs = make(), outputs_of(1)
    params = head(outputs)
    entropy, expected_action = head.entropy(params), head.mean_action(params)
    mean, std = moments(outputs)
    for row, dimension in np.ndindex(BATCH, 3):
        where = mean[row][dimension], std[row][dimension], dimension
        ends = CENTRE[dimension] - HALF[dimension], CENTRE[dimension] + HALF[dimension]

        def information(x: float, where: tuple[float, float, int] = where) -> float:
            p = density(x, *where)
            return -p * np.log(p) if p > 0 else 0.0

        def moment(x: float, where: tuple[float, float, int] = where) -> float:
            return x * density(x, *where)

        inside = ends[0] * (1 - 1e-12) + ends[1] * 1e-12, ends[1] * (1 - 1e-12) + ends[0] * 1e-12
        np.testing.assert_allclose(
            entropy[row, dimension], integrate.quad(information, *inside, limit=500)[0], atol=2e-4
        )
        np.testing.assert_allclose(
            expected_action[row, dimension], integrate.quad(moment, *inside, limit=500)[0], atol=2e-4 * HALF[dimension]
        )


def test_gradients_are_finite_differences() -> None:
    head, outputs = make(), outputs_of(2).requires_grad_()
    choice = head.sample(head(outputs.detach()), torch.Generator().manual_seed(0))
    for function in (lambda o: head.log_prob(head(o), choice), lambda o: head.entropy(head(o))):
        assert torch.autograd.gradcheck(function, (outputs,))


def test_kl_and_fisher_product_are_the_gaussians() -> None:
    # An invertible map of the sample changes neither.
    head = make()
    plain = make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="gaussian", log_std="state-dependent")).double()
    assert isinstance(plain, DiagonalGaussian)
    old, new = outputs_of(3), outputs_of(4)
    torch.testing.assert_close(head.kl(head(old), head(new)), plain.kl(plain(old), plain(new)))
    tangent = torch.randn(BATCH, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(head.fisher_product(head(old), tangent), plain.fisher_product(plain(old), tangent))
    # And the definition: E[log p - log q] over samples of p.
    params, others = head(old).expand(4000, BATCH, 3, 2), head(new).expand(4000, BATCH, 3, 2)
    choice = head.sample(params, torch.Generator().manual_seed(6))
    ratio = head.log_prob(params, choice) - head.log_prob(others, choice)
    error = ratio.std(0) / np.sqrt(4000)
    assert ((ratio.mean(0) - head.kl(head(old), head(new))).abs() < 5 * error).all()


def test_samples_follow_the_density() -> None:
    head, outputs, draws = make(), outputs_of(7), 20_000
    params = head(outputs)[:1].expand(draws, 3, 2)
    action = head.to_action(head.sample(params, torch.Generator().manual_seed(0))).numpy()
    mean, std = moments(outputs)
    for dimension in range(3):
        edges = np.linspace(LOW[dimension], HIGH[dimension], 9)
        position = np.clip((edges - CENTRE[dimension]) / HALF[dimension], -1, 1)
        with np.errstate(divide="ignore"):
            mass = np.diff(stats.norm.cdf(np.arctanh(position), mean[0][dimension], std[0][dimension]))
        found, _ = np.histogram(action[:, dimension], edges)
        assert stats.chisquare(found, draws * mass / mass.sum()).pvalue > 1e-3


@pytest.mark.parametrize("size", [20.0, 1e4])
def test_the_bounds_stay_finite_and_inside_the_box(size: float) -> None:
    head = make().float()
    box = Box(np.asarray(LOW, np.float32), np.asarray(HIGH, np.float32))
    for sign in (-1, 1):
        outputs = torch.tensor([[sign * size] * 3 + [0.0] * 3], dtype=torch.float32, requires_grad=True)
        params = head(outputs)
        choice = head.sample(params.detach(), torch.Generator().manual_seed(0))
        log_prob, entropy = head.log_prob(params, choice), head.entropy(params)
        for value in (log_prob, entropy):
            (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
            assert value.isfinite().all()
            assert gradient.isfinite().all()
        for action in (head.to_action(choice), head.to_action(head.mode(params)), head.mean_action(params)):
            assert box.contains(action.detach().numpy()[0])


def test_squashing_twice_is_refused() -> None:
    config = Config(task="Hopper-v4", head=HeadConfig(kind="squashed-gaussian", mean="squashed"))
    with pytest.raises(ConfigError, match=r"the squashed-gaussian head squashes its samples already"):
        validate(config)
