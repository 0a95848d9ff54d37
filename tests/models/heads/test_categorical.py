from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.models.heads.categorical import CategoricalHead
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
Array = NDArray[np.float64]
BATCH, BINS = 4, 7


def make(bins: int = BINS) -> CategoricalHead:
    head = make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="categorical", bins=bins))
    assert isinstance(head, CategoricalHead)
    return head


def random_logits(seed: int, bins: int = BINS, scale: float = 2.0) -> Array:
    return scale * np.random.default_rng(seed).standard_normal((BATCH, 3, bins))


def outputs_of(logits: Array) -> Tensor:
    """What the network gives for these logits: dimension after dimension, `[B, m K]`."""
    return torch.from_numpy(logits).flatten(start_dim=1).requires_grad_()


def numerical_gradient(function: Callable[[Array], Array], at: Array, step: float = 1e-6) -> Array:
    """Central differences of the sum of `function`."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[index] = step
        gradient[index] = (function(at + shift) - function(at - shift)).sum() / (2 * step)
    return gradient


def scipy_log_prob(logits: Array, choice: NDArray[np.int64]) -> Array:
    one_hot = np.eye(logits.shape[-1], dtype=np.int64)[choice]
    log_prob: Array = stats.multinomial.logpmf(one_hot, 1, special.softmax(logits, -1))
    return log_prob


def scipy_entropy(logits: Array) -> Array:
    entropy: Array = stats.entropy(special.softmax(logits, -1), axis=-1)
    return entropy


def scipy_kl(old: Array, new: Array) -> Array:
    kl: Array = stats.entropy(special.softmax(old, -1), special.softmax(new, -1), axis=-1)
    return kl


def gradient_of(value: Tensor, outputs: Tensor) -> Array:
    (gradient,) = torch.autograd.grad(value.sum(), outputs)
    return gradient.numpy().reshape(BATCH, 3, -1)


def test_log_prob_and_its_gradient_are_those_of_scipy() -> None:
    head, logits = make(), random_logits(0)
    choice = np.random.default_rng(1).integers(0, BINS, (BATCH, 3))
    outputs = outputs_of(logits)
    log_prob = head.log_prob(head(outputs), torch.from_numpy(choice).to(torch.uint8))
    assert log_prob.dtype == torch.float64
    np.testing.assert_allclose(log_prob.detach(), scipy_log_prob(logits, choice), rtol=1e-10)
    gradient = gradient_of(log_prob, outputs)
    # d log p_c / d l_k = [k = c] - p_k
    np.testing.assert_allclose(gradient, np.eye(BINS)[choice] - special.softmax(logits, -1), atol=1e-12)
    expected = numerical_gradient(lambda at: scipy_log_prob(at, choice), logits)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_entropy_and_its_gradient_are_those_of_scipy() -> None:
    head, logits = make(), random_logits(2)
    outputs = outputs_of(logits)
    entropy = head.entropy(head(outputs))
    np.testing.assert_allclose(entropy.detach(), scipy_entropy(logits), rtol=1e-12)
    gradient = gradient_of(entropy, outputs)
    # d H / d l_k = -p_k (log p_k + H)
    p = special.softmax(logits, -1)
    np.testing.assert_allclose(gradient, -p * (np.log(p) + scipy_entropy(logits)[..., None]), atol=1e-12)
    np.testing.assert_allclose(gradient, numerical_gradient(scipy_entropy, logits), atol=1e-7)


def test_kl_and_its_gradients_are_those_of_scipy() -> None:
    head, old, new = make(), random_logits(3), random_logits(4)
    old_outputs, new_outputs = outputs_of(old), outputs_of(new)
    kl = head.kl(head(old_outputs), head(new_outputs))
    np.testing.assert_allclose(kl.detach(), scipy_kl(old, new), rtol=1e-12)
    to_old, to_new = torch.autograd.grad(kl.sum(), [old_outputs, new_outputs])
    # d KL / d new_k = q_k - p_k
    difference = special.softmax(new, -1) - special.softmax(old, -1)
    np.testing.assert_allclose(to_new.reshape(old.shape), difference, atol=1e-12)
    expected = numerical_gradient(lambda at: scipy_kl(at, new), old)
    np.testing.assert_allclose(to_old.reshape(old.shape), expected, atol=1e-7)
    assert head.kl(head(old_outputs), head(old_outputs)).abs().max() == 0


def test_bins_start_as_a_uniform_distribution_where_all_logits_are_equal() -> None:
    head = make(41)
    params = head(torch.zeros(1, 3 * 41, dtype=torch.float64))
    np.testing.assert_allclose(params.exp(), 1 / 41, rtol=1e-12)
    np.testing.assert_allclose(head.entropy(params), np.log(41), rtol=1e-12)


@pytest.mark.parametrize("bins", [2, 3, 41, 257])
def test_actions_are_low_plus_j_steps_on_each_dimensions_own_bounds(bins: int) -> None:
    head = make(bins)
    choice = torch.arange(bins)[:, None].expand(bins, 3)
    by_hand = [[low + j * (high - low) / (bins - 1) for low, high in zip(LOW, HIGH, strict=True)] for j in range(bins)]
    np.testing.assert_allclose(head.to_action(choice), by_hand, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("bins", [2, 41, 256, 257, 1001])
def test_no_rounding_takes_a_bin_out_of_the_box(bins: int) -> None:
    rng = np.random.default_rng(bins)
    low = (rng.standard_normal(200) * 10 ** rng.uniform(-3, 3, 200)).astype(np.float32)
    high = (low + np.abs(rng.standard_normal(200)) * 10 ** rng.uniform(-2, 3, 200)).astype(np.float32)
    assert (low < high).all()
    head = make_head(ActionSpec(tuple(low.tolist()), tuple(high.tolist())), HeadConfig(bins=bins))
    actions = head.to_action(torch.arange(bins)[:, None].expand(bins, 200)).numpy()
    np.testing.assert_array_equal(actions[0], low)
    np.testing.assert_array_equal(actions[-1], high)
    assert (actions >= low).all()
    assert (actions <= high).all()
    assert (np.diff(actions, axis=0) >= 0).all()


@pytest.mark.parametrize(
    ("bins", "dtype"), [(2, torch.uint8), (256, torch.uint8), (257, torch.int16), (1001, torch.int16)]
)
def test_a_choice_is_a_small_integer_that_survives_its_type(bins: int, dtype: torch.dtype) -> None:
    head = make(bins)
    logits = torch.zeros(1, 3, bins)
    logits[..., -1] = 50.0
    params = head(logits.flatten(start_dim=1))
    for choice in (head.sample(params), head.mode(params)):
        assert choice.dtype == dtype
        assert choice.tolist() == [[bins - 1] * 3]
        np.testing.assert_array_equal(head.to_action(choice)[0], np.asarray(HIGH, np.float32))
        np.testing.assert_allclose(head.log_prob(params, choice), 0.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("bins", "draws"), [(2, 4000), (7, 20000), (257, 20000)])
def test_sampling_frequencies_are_the_probabilities(bins: int, draws: int, dtype: torch.dtype) -> None:
    head = make(bins)
    logits = random_logits(bins, bins, scale=0.7)[:1]
    params = head(outputs_of(logits).detach().to(dtype)).expand(draws, 3, bins)
    choice = head.sample(params, torch.Generator().manual_seed(0)).long()
    probabilities = special.softmax(logits[0], -1)
    for dimension in range(3):
        found = np.bincount(choice[:, dimension], minlength=bins)
        assert stats.chisquare(found, draws * probabilities[dimension]).pvalue > 1e-3
    # Dimensions are drawn independently: a table of two of them has no structure.
    if bins <= 7:
        table = np.zeros((bins, bins))
        np.add.at(table, (choice[:, 0], choice[:, 2]), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_a_thousand_bins_are_drawn_by_their_probabilities() -> None:
    head, bins, draws = make(1001), 1001, 4000
    logits = random_logits(5, bins, scale=1.5)[:1]
    params = head(outputs_of(logits).detach().float()).expand(draws, 3, bins)
    choice = head.sample(params, torch.Generator().manual_seed(1)).long()
    # In groups of 77 neighbours, 13 of them.
    expected = special.softmax(logits[0], -1).reshape(3, 13, 77).sum(-1) * draws
    for dimension in range(3):
        found = np.bincount(choice[:, dimension] // 77, minlength=13)
        assert stats.chisquare(found, expected[dimension]).pvalue > 1e-3


def test_bins_of_zero_probability_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    head = make(7)
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    allowed = [[2, 4], [0, 3], [6]]
    for dimension, bins in enumerate(allowed):
        logits[dimension, [j for j in range(7) if j not in bins]] = -torch.inf
    params = head(logits.reshape(1, 21))
    drawn = head.sample(params.expand(2000, 3, 7), torch.Generator().manual_seed(0))
    assert [sorted(set(drawn[:, dimension].tolist())) for dimension in range(3)] == allowed

    # The two ends of what torch.rand can give, which 2000 draws do not meet: [0, 1) in steps of 2**-24.
    def ends(shape: tuple[int, ...], **_: Any) -> Tensor:
        return torch.tensor([0.0, 1 - 2**-24])[:, None, None].expand(shape)

    monkeypatch.setattr(torch, "rand", ends)
    assert head.sample(params.expand(2, 3, 7)).tolist() == [[2, 0, 6], [4, 3, 6]]


@pytest.mark.parametrize("total", [1.0, 1 - 2**-20, 1 + 2**-20])
def test_the_largest_random_number_draws_the_last_bin_that_has_probability(
    total: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Log-probabilities of a softmax add up to 1 only up to rounding; here by more than that.
    head = make(7)
    params = (torch.tensor([0.25, 0.25, 0.5, 0.0, 0.0, 0.0, 0.0]) * total).log().expand(1, 3, 7)
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, 1 - 2**-24))
    assert head.sample(params).tolist() == [[2, 2, 2]]


def test_mode_is_the_most_probable_bin() -> None:
    head, logits = make(), random_logits(6)
    mode = head.mode(head(outputs_of(logits)))
    np.testing.assert_array_equal(mode, logits.argmax(-1))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_extreme_logits_stay_finite(size: float) -> None:
    head = make(5)
    logits = torch.tensor([[size, 0, -size, 0, 0], [-size, -size, -size, -size, size], [size, size, -size, 0, 0]])
    outputs = logits.reshape(1, 15).requires_grad_()
    params = head(outputs)
    other = head(torch.zeros(1, 15))
    everything = {
        "log_prob": head.log_prob(params, torch.tensor([[2, 0, 2]])),
        "entropy": head.entropy(params),
        "kl from": head.kl(params, other),
        "kl to": head.kl(other, params),
    }
    for name, value in everything.items():
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        assert value.isfinite().all(), name
        assert gradient.isfinite().all(), name
    # The whole probability is in one bin, in one, in two.
    np.testing.assert_allclose(everything["entropy"].detach()[0], [0.0, 0.0, np.log(2)], atol=1e-6)
    np.testing.assert_allclose(
        everything["kl from"].detach()[0], [np.log(5), np.log(5), np.log(5) - np.log(2)], rtol=1e-5
    )
    assert head.sample(params).tolist()[0][:2] == [0, 4]


def test_sampled_and_most_probable_actions_are_inside_the_box() -> None:
    head = make(41)
    box = Box(np.asarray(LOW, np.float32), np.asarray(HIGH, np.float32))
    params = head(torch.randn(500, 3 * 41, generator=torch.Generator().manual_seed(0)) * 20)
    for choice in (head.sample(params, torch.Generator().manual_seed(0)), head.mode(params)):
        assert all(box.contains(action) for action in head.to_action(choice).numpy())


def test_a_generator_decides_what_is_drawn() -> None:
    head = make(41)
    params = head(torch.zeros(20, 3 * 41))
    first = head.sample(params, torch.Generator().manual_seed(7))
    torch.rand(3)
    assert torch.equal(first, head.sample(params, torch.Generator().manual_seed(7)))
    assert not torch.equal(first, head.sample(params, torch.Generator().manual_seed(8)))


def test_bins_are_saved_with_the_policy() -> None:
    assert list(make().state_dict()) == ["bins"]
