from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.models.heads.gaussian import GaussianHead
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
Mean = Literal["plain", "squashed"]
LogStd = Literal["state-independent", "state-dependent"]
Array = NDArray[np.float64]
BATCH = 4

every_kind = pytest.mark.parametrize(
    ("mean", "log_std"),
    [(mean, log_std) for mean in ("plain", "squashed") for log_std in ("state-independent", "state-dependent")],
)


class Oracle:
    """The same distribution from the network's outputs, written in NumPy and scipy."""

    def __init__(self, mean: Mean, log_std: LogStd, init: float, learned: Array) -> None:
        self.mean, self.log_std, self.init, self.learned = mean, log_std, init, learned

    def normal(self, outputs: Array) -> tuple[Array, Array]:
        """Mean and standard deviation `[B, 3]`."""
        mean = outputs[:, :3]
        if self.mean == "squashed":
            # Into (-3, -1), (0, 10), (-0.4, 0.4): centres -2, 5, 0 and half ranges 1, 5, 0.4.
            mean = np.array([-2.0, 5.0, 0.0]) + np.array([1.0, 5.0, 0.4]) * np.tanh(mean)
        if self.log_std == "state-dependent":
            return mean, np.exp(outputs[:, 3:] + self.init)
        return mean, np.broadcast_to(np.exp(self.learned), mean.shape)

    def log_prob(self, outputs: Array, choice: Array) -> Array:
        log_prob: Array = stats.norm.logpdf(choice, *self.normal(outputs))
        return log_prob

    def entropy(self, outputs: Array) -> Array:
        entropy: Array = stats.norm.entropy(*self.normal(outputs))
        return entropy


def make(
    mean: Mean = "plain", log_std: LogStd = "state-independent", init: float = -0.3, seed: int = 0
) -> tuple[GaussianHead, Oracle]:
    """A head in float64, moved away from its initial values, and its oracle."""
    config = HeadConfig(kind="gaussian", mean=mean, log_std=log_std, log_std_init=init)
    head = make_head(ActionSpec(LOW, HIGH), config)
    assert isinstance(head, GaussianHead)
    learned = np.array([-1.0, 0.5, 0.1]) + 0.1 * seed
    if head.log_std is not None:
        head.log_std.data = torch.from_numpy(learned)
    return head, Oracle(mean, log_std, init, learned)


def random_outputs(head: GaussianHead, seed: int) -> Tensor:
    outputs = np.random.default_rng(seed).standard_normal((BATCH, head.num_outputs))
    return torch.from_numpy(outputs).requires_grad_()


def numerical_gradient(function: Callable[[Array], Array], at: Array, step: float = 1e-6) -> Array:
    """Central differences of the sum of `function`."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        gradient[index] = (function(at + shift) - function(at - shift)).sum() / (2 * step)
    return gradient


# Bounds are float32 buffers: 0.4 is known to 1.5e-8.
CLOSE = 1e-6


@every_kind
def test_log_prob_and_its_gradient_are_those_of_scipy(mean: Mean, log_std: LogStd) -> None:
    head, oracle = make(mean, log_std)
    outputs = random_outputs(head, 0)
    choice = np.random.default_rng(1).uniform(-4, 12, (BATCH, 3))
    log_prob = head.log_prob(head(outputs), torch.from_numpy(choice))
    at = outputs.detach().numpy()
    np.testing.assert_allclose(log_prob.detach(), oracle.log_prob(at, choice), rtol=CLOSE)
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs, retain_graph=True)
    expected = numerical_gradient(lambda x: oracle.log_prob(x, choice), at)
    np.testing.assert_allclose(gradient, expected, rtol=CLOSE, atol=1e-6)
    if head.log_std is not None:
        (gradient,) = torch.autograd.grad(log_prob.sum(), head.log_std)
        # d log N / d log sigma = z^2 - 1
        center, std = oracle.normal(at)
        np.testing.assert_allclose(gradient, (((choice - center) / std) ** 2 - 1).sum(0), rtol=CLOSE)


def test_log_prob_is_exact_in_float64_where_no_bound_enters() -> None:
    for log_std in ("state-independent", "state-dependent"):
        head, oracle = make("plain", log_std)
        outputs = random_outputs(head, 2)
        choice = np.random.default_rng(3).uniform(-4, 12, (BATCH, 3))
        log_prob = head.log_prob(head(outputs), torch.from_numpy(choice)).detach()
        np.testing.assert_allclose(log_prob, oracle.log_prob(outputs.detach().numpy(), choice), rtol=1e-12)


@every_kind
def test_entropy_and_its_gradient_are_those_of_scipy(mean: Mean, log_std: LogStd) -> None:
    head, oracle = make(mean, log_std)
    outputs = random_outputs(head, 4)
    entropy = head.entropy(head(outputs))
    at = outputs.detach().numpy()
    np.testing.assert_allclose(entropy.detach(), oracle.entropy(at), rtol=1e-12)
    (gradient,) = torch.autograd.grad(entropy.sum(), outputs, retain_graph=True)
    np.testing.assert_allclose(gradient, numerical_gradient(oracle.entropy, at), atol=1e-7)
    if head.log_std is not None:
        (gradient,) = torch.autograd.grad(entropy.sum(), head.log_std)
        # Each state's entropy grows by 1 per unit of log sigma.
        np.testing.assert_allclose(gradient, [BATCH] * 3, rtol=1e-12)


@every_kind
def test_kl_is_the_integral_that_defines_it(mean: Mean, log_std: LogStd) -> None:
    (old_head, old_oracle), (new_head, new_oracle) = make(mean, log_std), make(mean, log_std, seed=2)
    old, new = random_outputs(old_head, 5), random_outputs(new_head, 6)
    kl = old_head.kl(old_head(old), new_head(new)).detach().numpy()[:1]
    (mu, sigma), (nu, tau) = old_oracle.normal(old.detach().numpy()), new_oracle.normal(new.detach().numpy())
    for index in np.ndindex(kl.shape):
        p, q = stats.norm(mu[index], sigma[index]), stats.norm(nu[index], tau[index])
        integral, _ = integrate.quad(
            lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)),
            mu[index] - 12 * sigma[index],
            mu[index] + 12 * sigma[index],
        )
        assert kl[index] == pytest.approx(integral, rel=CLOSE)


def test_kl_gradients_are_those_derived_by_hand() -> None:
    head, _ = make("squashed", "state-dependent")
    old, new = (head(random_outputs(head, seed)).detach().requires_grad_() for seed in (7, 8))
    to_old, to_new = torch.autograd.grad(head.kl(old, new).sum(), [old, new])
    (mu, log_sigma), (nu, log_tau) = old.detach().numpy().T, new.detach().numpy().T
    sigma, tau = np.exp(log_sigma), np.exp(log_tau)
    # KL = log tau - log sigma + (sigma^2 + (mu - nu)^2) / (2 tau^2) - 1/2
    np.testing.assert_allclose(to_old.numpy().T, [(mu - nu) / tau**2, sigma**2 / tau**2 - 1], rtol=1e-10, atol=1e-12)
    by_hand = [(nu - mu) / tau**2, 1 - (sigma**2 + (mu - nu) ** 2) / tau**2]
    np.testing.assert_allclose(to_new.numpy().T, by_hand, rtol=1e-10, atol=1e-12)
    assert head.kl(old, old).abs().max() == 0


@every_kind
def test_samples_have_the_distribution_of_the_parameters(mean: Mean, log_std: LogStd) -> None:
    head, oracle = make(mean, log_std)
    outputs = random_outputs(head, 9).detach()[:1]
    samples = head.sample(head(outputs).detach().expand(3000, 3, 2), torch.Generator().manual_seed(0))
    center, std = oracle.normal(outputs.numpy())
    for dimension in range(3):
        law = stats.norm(center[0, dimension], std[0, dimension])
        assert stats.kstest(samples[:, dimension], law.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(samples.numpy().T) - np.eye(3)).max() < 0.06


def test_samples_are_clipped_only_on_the_way_to_the_simulator() -> None:
    head, _ = make("plain", "state-dependent", init=0.0)
    # Mean 20 above the box of dimension 1, standard deviations 1.
    params = head(torch.tensor([[-2.0, 30.0, 0.0, 0.0, 0.0, 0.0]]))
    choice = head.sample(params.expand(100, 3, 2), torch.Generator().manual_seed(0))
    assert (choice[:, 1] > 20).all()
    action = head.to_action(choice)
    assert (action[:, 1] == 10).all()
    assert (action[:, 0] == choice[:, 0].clamp(-3, -1)).all()
    # The density is that of the sample; at the clipped action it would be lower by 20^2 / 2.
    expected = stats.norm.logpdf(choice.numpy(), [-2.0, 30.0, 0.0], 1.0)
    np.testing.assert_allclose(head.log_prob(params, choice), expected, rtol=1e-5)
    assert (head.log_prob(params, choice)[:, 1] > -15).all()
    assert (head.log_prob(params, action)[:, 1] < -195).all()


def test_a_plain_mean_is_the_networks_output_and_a_squashed_one_lies_inside_each_range() -> None:
    outputs = torch.tensor([[0.0, 0.0, 0.0], [100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]])
    plain, _ = make("plain")
    assert torch.equal(plain(outputs)[..., 0], outputs)
    squashed, _ = make("squashed")
    np.testing.assert_allclose(squashed(outputs)[..., 0].detach(), [[-2.0, 5.0, 0.0], HIGH, LOW], rtol=1e-6)
    # d mean / d output at 0 is half the range.
    outputs = torch.zeros(1, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(squashed(outputs)[..., 0].sum(), outputs)
    np.testing.assert_allclose(gradient, [[1.0, 5.0, 0.4]], rtol=1e-6)


def test_log_std_starts_where_the_configuration_says() -> None:
    for log_std in ("state-independent", "state-dependent"):
        head = make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="gaussian", log_std=log_std, log_std_init=-0.7))
        params = head(torch.zeros(2, head.num_outputs))
        np.testing.assert_allclose(params[..., 1].detach(), -0.7, rtol=1e-6)
        assert head.num_outputs == (3 if log_std == "state-independent" else 6)
        assert len(list(head.parameters())) == (log_std == "state-independent")


def bounded(low: float, high: float) -> GaussianHead:
    """A state-dependent head in float64 whose log standard deviations start at -0.5."""
    config = HeadConfig(
        kind="gaussian", log_std="state-dependent", log_std_init=-0.5, log_std_min=low, log_std_max=high
    )
    head = make_head(ActionSpec(LOW, HIGH), config).double()
    assert isinstance(head, GaussianHead)
    return head


def test_a_state_dependent_log_std_stays_inside_its_bounds_and_has_no_gradient_beyond_them() -> None:
    head = bounded(-1.0, 0.5)
    # Means 0; log standard deviations -0.5 - 2.5 = -3, below the bounds, -0.5 + 0.25 = -0.25, inside, and
    # -0.5 + 4.5 = 4, above.
    outputs = torch.tensor([[0.0, 0.0, 0.0, -2.5, 0.25, 4.5]], dtype=torch.float64, requires_grad=True)
    params = head(outputs)
    np.testing.assert_array_equal(params[..., 1].detach(), [[-1.0, -0.25, 0.5]])
    log_prob = head.log_prob(params, torch.full((1, 3), 2.0, dtype=torch.float64))
    z = 2 * np.exp([1.0, 0.25, -0.5])
    by_hand = -0.5 * np.log(2 * np.pi) - [-1.0, -0.25, 0.5] - z**2 / 2
    np.testing.assert_allclose(log_prob[0].detach(), by_hand, rtol=1e-12)
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
    # d log N / d mean = z / sigma, d log N / d log sigma = z^2 - 1 inside the bounds and 0 beyond them.
    np.testing.assert_allclose(gradient[0, :3], z * z / 2, rtol=1e-12)
    np.testing.assert_allclose(gradient[0, 3:], [0.0, z[1] ** 2 - 1, 0.0], rtol=1e-12)
    (gradient,) = torch.autograd.grad(head.entropy(head(outputs)).sum(), outputs)
    np.testing.assert_array_equal(gradient[0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0])


def test_a_log_std_on_its_bound_can_come_back() -> None:
    head = bounded(-0.5, 0.5)
    outputs = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    params = head(outputs)
    np.testing.assert_array_equal(params[..., 1].detach(), [[-0.5, 0.5, 0.0]])
    (gradient,) = torch.autograd.grad(params[..., 1].sum(), outputs)
    np.testing.assert_array_equal(gradient[0, 3:], [1.0, 1.0, 1.0])


def test_forward_derivatives_agree_with_the_bounds() -> None:
    """TRPO's Fisher-vector products carry tangents forward."""
    head = bounded(-1.0, 0.5)
    outputs = torch.tensor([[0.0, 0.0, 0.0, -2.5, 0.25, 4.5]], dtype=torch.float64)
    change = torch.func.jvp(head, (outputs,), (torch.full_like(outputs, 3.0),))[1]
    np.testing.assert_array_equal(change[0], [[3.0, 0.0], [3.0, 3.0], [3.0, 0.0]])


def test_extreme_outputs_for_a_state_dependent_log_std_stay_finite() -> None:
    head = bounded(-20.0, 20.0).float()
    outputs = torch.tensor([[0.0, 0.0, 0.0, -1e30, 1e30, 0.0]], requires_grad=True)
    params = head(outputs)
    swapped = params.flip(1).detach()
    # Standard deviations exp(-20) and exp(20): the quotient of their squares is exp(80) < 3.4e38, float32's largest.
    for number in (head.log_prob(params, torch.ones(1, 3)), head.entropy(params), head.kl(swapped, params)):
        (gradient,) = torch.autograd.grad(number.sum(), outputs, retain_graph=True)
        assert number.isfinite().all()
        assert gradient.isfinite().all()
    assert head.fisher_product(params.detach(), torch.ones(1, 3, 2)).isfinite().all()


def test_bounds_leave_a_state_independent_log_std_alone() -> None:
    config = HeadConfig(kind="gaussian", log_std_init=-0.5, log_std_min=-1.0, log_std_max=0.5)
    head = make_head(ActionSpec(LOW, HIGH), config)
    assert isinstance(head, GaussianHead)
    assert head.log_std is not None
    head.log_std.data = torch.tensor([-30.0, 0.25, 30.0])
    log_std = head(torch.zeros(1, 3))[..., 1]
    np.testing.assert_array_equal(log_std.detach(), [[-30.0, 0.25, 30.0]])
    (gradient,) = torch.autograd.grad(log_std.sum(), head.log_std)
    np.testing.assert_array_equal(gradient, [1.0, 1.0, 1.0])


def test_state_independent_log_std_ignores_the_state_and_state_dependent_does_not() -> None:
    for log_std in ("state-independent", "state-dependent"):
        head, _ = make("plain", log_std)
        deviations = head(random_outputs(head, 10))[..., 1].detach()
        assert torch.equal(deviations, deviations[:1].expand_as(deviations)) == (log_std == "state-independent")


@every_kind
def test_sampled_and_most_probable_actions_are_inside_the_box(mean: Mean, log_std: LogStd) -> None:
    box = Box(np.asarray(LOW, np.float32), np.asarray(HIGH, np.float32))
    head = make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="gaussian", mean=mean, log_std=log_std))
    for scale in (1.0, 30.0):
        outputs = scale * torch.randn(300, head.num_outputs, generator=torch.Generator().manual_seed(0))
        params = head(outputs).detach()
        for choice in (head.sample(params, torch.Generator().manual_seed(0)), head.mode(params)):
            assert all(box.contains(action) for action in head.to_action(choice).numpy())


def test_mode_is_the_mean() -> None:
    head, oracle = make("squashed", "state-dependent")
    outputs = random_outputs(head, 11).detach()
    np.testing.assert_allclose(head.mode(head(outputs)), oracle.normal(outputs.numpy())[0], rtol=CLOSE, atol=1e-7)


def test_extreme_outputs_of_a_squashed_mean_stay_finite() -> None:
    head, _ = make("squashed")
    outputs = torch.tensor([[1e30, -1e30, 1e3]], requires_grad=True)
    params = head(outputs)
    log_prob = head.log_prob(params, torch.tensor([[-2.0, 3.0, 0.1]]))
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()


def test_a_generator_decides_what_is_drawn() -> None:
    head, _ = make()
    params = head(torch.zeros(20, 3))
    first = head.sample(params, torch.Generator().manual_seed(7))
    torch.randn(3)
    assert torch.equal(first, head.sample(params, torch.Generator().manual_seed(7)))
    assert not torch.equal(first, head.sample(params, torch.Generator().manual_seed(8)))
