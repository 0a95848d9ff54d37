"""Every head over bins against the same distribution written in NumPy, with scipy and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.models.heads import make_head
from detent.models.heads.categorical import CategoricalHead
from detent.models.heads.coarse_fine import CoarseFineHead
from detent.models.heads.shapes import require_shapes
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
ACTION = ActionSpec(LOW, HIGH)
BATCH = 4
Array = NDArray[np.float64]
LogProbabilities = Callable[[Array, int], Array]
"""Maps the outputs of one dimension `[R]` and its number of bins K to log-probabilities `[K]`."""


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Make constants of a head in float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def categorical(outputs: Array, bins: int) -> Array:
    return np.asarray(special.log_softmax(outputs))


def ordinal(outputs: Array, bins: int) -> Array:
    """As Tang & Agrawal write it, with sigmoids; the scale 1/sqrt(K) is the head's."""
    scaled = outputs / np.sqrt(bins)
    on, off = np.log(special.expit(scaled)), np.log(special.expit(-scaled))
    return np.asarray(special.log_softmax([on[: i + 1].sum() + off[i + 1 :].sum() for i in range(bins)]))


def unimodal(outputs: Array, bins: int) -> Array:
    centre = (bins - 1) / 2
    rate = max(np.log1p(np.exp(np.log(np.expm1(centre)) + centre * outputs[0])), 1e-6)
    return np.asarray(special.log_softmax(stats.poisson.logpmf(np.arange(bins), rate) / ((bins - 1) / 8)))


def smooth(outputs: Array, bins: int) -> Array:
    """Piece by piece: between two knots, a cubic polynomial in the four coefficients around them."""
    logits = np.empty(bins)
    for j, x in enumerate(np.linspace(0, len(outputs) - 3, bins)):
        piece = min(int(x), len(outputs) - 4)
        t = x - piece
        weights = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
        logits[j] = np.dot(weights, outputs[piece : piece + 4]) / 6
    return np.asarray(special.log_softmax(logits))


def coarse_fine(outputs: Array, bins: int) -> Array:
    """The two digits of each position, one after the other."""
    fine = int(np.ceil(bins / round(np.sqrt(bins))))
    coarse = int(np.ceil(bins / fine))
    tops, slopes, textures = outputs[:coarse], outputs[coarse : 2 * coarse], outputs[2 * coarse :]
    positions = [min(fine, bins - c * fine) for c in range(coarse)]
    first = special.log_softmax(tops + np.log(positions))
    ramp = np.linspace(-1, 1, fine)
    pieces = [first[c] + special.log_softmax((textures + slopes[c] * ramp)[: positions[c]]) for c in range(coarse)]
    return np.concatenate(pieces)


ORACLES: dict[str, LogProbabilities] = {
    "categorical": categorical,
    "ordinal": ordinal,
    "unimodal": unimodal,
    "smooth": smooth,
    "coarse-fine": coarse_fine,
}
every_head = pytest.mark.parametrize("kind", ORACLES)


def make(kind: str, bins: int = 11, **settings: object) -> CategoricalHead:
    options = {"rank": 6} if kind == "smooth" else {}
    head = make_head(ACTION, HeadConfig(kind=kind, bins=bins, options=options, **settings)).double()  # type: ignore[arg-type]
    assert isinstance(head, CategoricalHead)
    return head


def random_outputs(head: CategoricalHead, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, head.num_outputs, generator=generator, dtype=torch.float64)


def oracle(kind: str, outputs: Array, bins: int = 11) -> Array:
    """Log-probabilities `[B, m, K]`."""
    rows = outputs.reshape(len(outputs), 3, -1)
    return np.array([[ORACLES[kind](row, bins) for row in dimensions] for dimensions in rows])


def derivatives(function: Callable[[Array], Array], at: Array, step: float = 1e-5) -> Array:
    """Central differences of `function` `[...]` at `at` `[n]`, as `[n, ...]`."""
    shifts = step * np.eye(len(at))
    return np.array([(function(at + shift) - function(at - shift)) / (2 * step) for shift in shifts])


@every_head
@pytest.mark.parametrize("bins", [2, 11, 41])
def test_log_probabilities_are_those_of_the_definition(kind: str, bins: int) -> None:
    head = make(kind, bins)
    outputs = random_outputs(head, 0)
    params = head(outputs).detach()
    expected = oracle(kind, outputs.numpy(), bins)
    np.testing.assert_allclose(params, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(params.exp().sum(-1), 1.0, rtol=1e-12)
    choice = torch.randint(0, bins, (BATCH, 3), generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(
        head.log_prob(params, choice), np.take_along_axis(expected, choice.numpy()[..., None], -1)[..., 0], rtol=1e-8
    )


@every_head
def test_entropy_and_kl_are_those_of_scipy(kind: str) -> None:
    head = make(kind)
    outputs, others = random_outputs(head, 2), random_outputs(head, 3)
    p, q = np.exp(oracle(kind, outputs.numpy())), np.exp(oracle(kind, others.numpy()))
    with torch.no_grad():
        np.testing.assert_allclose(head.entropy(head(outputs)), stats.entropy(p, axis=-1), rtol=1e-9)
        np.testing.assert_allclose(head.kl(head(outputs), head(others)), stats.entropy(p, q, axis=-1), rtol=1e-8)


@every_head
def test_gradients_are_finite_differences_of_the_definition(kind: str) -> None:
    head = make(kind)
    outputs, others = random_outputs(head, 4)[:1].requires_grad_(), random_outputs(head, 5)[:1]
    choice = torch.tensor([[2, 0, 10]])
    other = np.exp(oracle(kind, others.numpy()))[0]
    params = head(outputs)
    found = [
        head.log_prob(params, choice).sum(),
        head.entropy(params).sum(),
        head.kl(params, head(others)).sum(),
        head.kl(head(others), params).sum(),
    ]

    def values(at: Array) -> Array:
        log_p = oracle(kind, at[None])[0]
        p = np.exp(log_p)
        return np.array(
            [
                np.take_along_axis(log_p, choice.numpy().T, -1).sum(),
                stats.entropy(p, axis=-1).sum(),
                stats.entropy(p, other, axis=-1).sum(),
                stats.entropy(other, p, axis=-1).sum(),
            ]
        )

    expected = derivatives(values, outputs.detach().numpy()[0])
    for i, value in enumerate(found):
        (gradient,) = torch.autograd.grad(value, outputs, retain_graph=True)
        np.testing.assert_allclose(gradient[0], expected[:, i], rtol=1e-5, atol=1e-7)


@every_head
def test_fisher_product_is_the_expected_product_of_scores(kind: str) -> None:
    head = make(kind)
    outputs = random_outputs(head, 6)[:1]
    tangent = random_outputs(head, 7)[:1]
    params, change = torch.autograd.functional.jvp(head, outputs, tangent)
    _, found = torch.autograd.functional.vjp(head, outputs, head.fisher_product(params, change))
    # sum_k p_k s_k (s_k . v), with the score s_k of bin k by finite differences of the definition.
    at = outputs.numpy()[0]
    scores = derivatives(lambda point: oracle(kind, point[None])[0], at)
    p = np.exp(oracle(kind, at[None])[0])
    expected = np.einsum("mk,imk,jmk,j->i", p, scores, scores, tangent.numpy()[0])
    np.testing.assert_allclose(found[0].detach(), expected, rtol=1e-4, atol=1e-7)


@every_head
def test_sampling_frequencies_are_the_probabilities(kind: str) -> None:
    head, draws = make(kind), 20_000
    outputs = 0.5 * random_outputs(head, 8)[:1]
    probabilities = np.exp(oracle(kind, outputs.numpy()))[0]
    params = head(outputs).detach().expand(draws, 3, 11)
    choice = head.sample(params, torch.Generator().manual_seed(0)).long()
    for dimension in range(3):
        found = np.bincount(choice[:, dimension], minlength=11)
        expected = draws * probabilities[dimension]
        # Bins that are hardly ever drawn count as one.
        rare = expected < 5
        found = np.append(found[~rare], found[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        keep = expected > 0
        assert stats.chisquare(found[keep], expected[keep] * found[keep].sum() / expected[keep].sum()).pvalue > 1e-3


@every_head
def test_a_fresh_policy_explores_and_favours_no_side(kind: str) -> None:
    head = make(kind, 41)
    params = head(torch.zeros(1, head.num_outputs, dtype=torch.float64)).detach()
    centre = (torch.tensor(LOW) + torch.tensor(HIGH)) / 2
    reach = torch.tensor(HIGH) - torch.tensor(LOW)
    np.testing.assert_allclose((head.mean_action(params)[0] - centre) / reach, 0.0, atol=0.03)
    spread = ((params.exp() * (head.bins - head.mean_action(params)[..., None]).square()).sum(-1)).sqrt()[0]
    assert (spread / reach > 0.2).all(), kind
    if kind != "unimodal":
        np.testing.assert_allclose(params.exp(), 1 / 41, rtol=1e-9)


@pytest.mark.parametrize("kind", ["categorical", "ordinal", "unimodal", "smooth"])
def test_dimensions_may_have_different_numbers_of_bins(kind: str) -> None:
    counts = (2, 11, 5)
    head = make(kind, bins_per_dimension=counts)
    require_shapes(head, ACTION)
    outputs = random_outputs(head, 9)
    params = head(outputs).detach()
    assert params.shape == (BATCH, 3, 11)
    drawn = head.sample(params.repeat(500, 1, 1), torch.Generator().manual_seed(0))
    sizes = (1, 1, 1) if kind == "unimodal" else (6, 6, 6) if kind == "smooth" else counts
    for dimension, (part, bins) in enumerate(zip(outputs.split(sizes, -1), counts, strict=True)):
        alone = np.array([_alone(kind, row, bins, max(counts)) for row in part.numpy()])
        np.testing.assert_allclose(params[:, dimension, :bins], alone, rtol=1e-8, atol=1e-9)
        assert params[:, dimension, bins:].exp().sum() == 0
        assert drawn[:, dimension].max() == bins - 1
        positions = np.linspace(LOW[dimension], HIGH[dimension], bins)
        np.testing.assert_allclose(head.bins[dimension, :bins], positions, rtol=1e-6)
    for value in (head.entropy(params), head.kl(params, head(random_outputs(head, 10)).detach())):
        assert value.isfinite().all()


def _alone(kind: str, outputs: Array, bins: int, largest: int) -> Array:
    # The ordinal head's scale is that of the largest number of bins.
    return ORACLES[kind](outputs * (np.sqrt(bins / largest) if kind == "ordinal" else 1), bins)


@every_head
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_extreme_outputs_stay_finite(kind: str, size: float) -> None:
    head = make(kind).float()
    outputs = (size * random_outputs(head, 11)).float().requires_grad_()
    params, other = head(outputs), head(torch.zeros_like(outputs))
    choice = head.sample(params.detach(), torch.Generator().manual_seed(0))
    for value in (head.log_prob(params, choice), head.entropy(params), head.kl(params, other), head.kl(other, params)):
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


def test_ordinal_and_smooth_logits_are_shared_by_neighbours() -> None:
    # What one output changes: one bin of a categorical head, all bins above for ordinal, a stretch for smooth.
    touched = {}
    for kind in ("categorical", "ordinal", "smooth"):
        head = make(kind, 41)
        jacobian = torch.func.jacrev(head.logits)(torch.zeros(1, head.num_outputs, dtype=torch.float64))
        touched[kind] = int((jacobian[0, 0, :, 0, 3].abs() > 1e-9).sum())
    # A spline of rank 6 has three pieces of 40 / 3 bins each; the fourth reaches over all of them but the ends.
    assert touched == {"categorical": 1, "ordinal": 38, "smooth": 40}


def test_the_number_of_outputs_does_not_grow_with_the_bins() -> None:
    sizes = {kind: make_head(ACTION, HeadConfig(kind=kind, bins=1001)).num_outputs for kind in ORACLES}
    assert sizes == {
        "categorical": 3 * 1001,
        "ordinal": 3 * 1001,
        "unimodal": 3,
        "smooth": 3 * 32,
        "coarse-fine": 3 * (32 + 32 + 32),
    }


@pytest.mark.parametrize(
    ("bins", "coarse", "fine"), [(1024, 32, 32), (1001, 32, 32), (41, 6, 7), (10, 3, 4), (2, 1, 2)]
)
def test_digits_of_the_coarse_fine_head(bins: int, coarse: int, fine: int) -> None:
    head = make("coarse-fine", bins)
    assert isinstance(head, CoarseFineHead)
    assert (head.coarse, head.fine) == (coarse, fine)
    assert (coarse - 1) * fine < bins <= coarse * fine


def test_mu_law_bins_are_dense_around_zero_wherever_it_lies() -> None:
    config = HeadConfig(spacing="mu-law", mu=10.0, bins=5)
    head = make_head(ActionSpec((-1.0, -3.0, 0.0, -4.0), (1.0, 1.0, 2.0, -2.0)), config)
    assert isinstance(head, CategoricalHead)
    bins = head.bins
    # f(1/2) = (11^(1/2) - 1) / 10, f(1/4) and f(3/4) likewise.
    half, quarter, most = ((11**share - 1) / 10 for share in (0.5, 0.25, 0.75))
    np.testing.assert_allclose(bins[0], [-1, -half, 0, half, 1], atol=1e-6)
    np.testing.assert_allclose(bins[1], [-3, -3 * half, 0, half, 1], atol=1e-6)
    np.testing.assert_allclose(bins[2], [0, 2 * quarter, 2 * half, 2 * most, 2], atol=1e-6)
    # Zero lies above the whole range: dense at its upper end.
    np.testing.assert_allclose(bins[3], [-4, -2 - 2 * most, -2 - 2 * half, -2 - 2 * quarter, -2], atol=1e-6)


def test_wrong_numbers_of_bins_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bins_per_dimension has 2 numbers, and the action 3 dimensions"):
        make("categorical", bins_per_dimension=(3, 4))
    with pytest.raises(ConfigError, match=r"have 3, 4, 3 bins; the coarse-fine head needs the same number"):
        make("coarse-fine", bins_per_dimension=(3, 4, 3))
    with pytest.raises(ConfigError, match=r"have 3, 4, 3 bins; the loss-swap head needs the same number"):
        make_head(ACTION, HeadConfig(kind="loss-swap", bins_per_dimension=(3, 4, 3)))
    with pytest.raises(ConfigError, match=r"head.bins_per_dimension is 1; .* at least 2"):
        HeadConfig(bins_per_dimension=(3, 1, 3))
    with pytest.raises(ConfigError, match=r"head.bins_per_dimension is 40000; at most 32767"):
        HeadConfig(bins_per_dimension=(3, 40000, 3))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("smooth", {"rank": 3}, r"head.options.rank is 3; a cubic spline needs at least 4"),
        ("unimodal", {"temperature": -1.0}, r"head.options.temperature is -1.0; it must be finite and not negative"),
        ("unimodal", {"temperature": float("nan")}, r"temperature is nan"),
        ("coarse-fine", {"coarse": -2}, r"head.options.coarse is -2; it must not be negative"),
        ("coarse-fine", {"coarse": 12}, r"head.options.coarse is 12, and there are only 11 bins"),
        ("ordinal", {"rank": 3}, r"head 'ordinal' takes no options"),
        ("smooth", {"ranks": 8}, r"head.options.ranks"),
    ],
)
def test_wrong_options_are_refused(kind: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_head(ACTION, HeadConfig(kind=kind, bins=11, options=options))


def test_a_fixed_temperature_is_saved_and_not_trained() -> None:
    config = HeadConfig(kind="unimodal", options={"temperature": 2.0, "learn_temperature": False})
    head = make_head(ACTION, config)
    assert list(head.parameters()) == []
    np.testing.assert_allclose(head.state_dict()["log_temperature"], np.log([2.0] * 3), rtol=1e-6)
    assert [name for name, _ in make_head(ACTION, HeadConfig(kind="unimodal")).named_parameters()] == [
        "log_temperature"
    ]
