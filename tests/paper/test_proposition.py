"""The checks of the proposition hold, say what they should, and fail when a formula or a head is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Generator, Tensor

from detent.errors import ConfigError
from detent.models.heads.categorical import CategoricalHead
from detent.models.heads.gaussian import GaussianHead
from detent.paper import gradient_moments
from detent.paper.proposition import Check, check_all, draw

SAMPLES = 10_000


def by_name(**settings: Any) -> dict[str, Check]:
    checks = check_all(**{"samples": SAMPLES, **settings})
    named = {check.name: check for check in checks}
    assert len(named) == len(checks)
    return named


def failed(**settings: Any) -> set[str]:
    return {name for name, check in by_name(**settings).items() if not check.ok}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seed": 2},
        {"dimensions": 1, "bins": 2, "samples": 100},
        {"dimensions": 2, "bins": 300, "samples": 1000, "total_return": -1e3},
        {"dimensions": 17, "total_return": 1e-3},
    ],
    ids=str,
)
def test_the_proposition_holds(settings: dict[str, Any]) -> None:
    assert failed(**settings) == set()


def test_the_expected_numbers_are_those_of_the_paper() -> None:
    checks = by_name(dimensions=2, bins=4, total_return=3.0)
    # R^2 = 9, m = 2, K = 4.
    assert {name: check.expected for name, check in checks.items() if "sharp" not in name and "/ m" not in name} == {
        "E|g|^2, categorical, uniform": pytest.approx(2 * 9 * 0.75),
        "E|g|^2, Gaussian, sigma 1": pytest.approx(2 * 9),
        "E|g|^2, Gaussian, sigma 0.5": pytest.approx(2 * 9 * 4),
        "E|g|^2, Gaussian, sigma 0.1": pytest.approx(2 * 9 * 100),
        "E|g|^2, Gaussian, sigma 0.1 to 1": pytest.approx(9 * (100 + 1)),
        "bound m R^2 (1 - 1/K), uniform": pytest.approx(2 * 9 * 0.75),
        "bound, uniform but for one logit, 0.1 higher": pytest.approx(2 * 9 * 0.75),
        "bound, largest of 20 other policies": pytest.approx(2 * 9 * 0.75),
        "gap per dimension at sigma 1, uniform": pytest.approx(9 / 4),
        "gap per dimension at sigma 1, smallest of 20 other policies": pytest.approx(9 / 4),
        "update's gradient - weighted cross-entropy's": 0.0,
        "update's gradient - weighted squared error's": 0.0,
    }
    # Bells of 0.4 and 0.5 bins around the third of four bins.
    p = np.exp(-0.5 * (np.array([[-2, -1, 0, 1]]) / [[0.4], [0.5]]) ** 2)
    p /= p.sum(-1, keepdims=True)
    assert checks["E|g|^2, categorical, very sharp"].expected == pytest.approx(9 * (2 - (p**2).sum()))
    # |g|^2 is R^2 (1 + |p|^2 - 2 p_j) in each dimension.
    spread = math.sqrt(sum(np.cov(9 * 2 * row, aweights=row, ddof=0) for row in p) / SAMPLES)
    assert checks["E|g|^2, categorical, very sharp"].standard_error == pytest.approx(spread)
    # One logit up by 0.1: that dimension has p = e / (e + 3) once and 1 / (e + 3) three times, with e = exp(0.1).
    e = math.exp(0.1)
    nudged = 9 * (0.75 + 1 - (e**2 + 3) / (e + 3) ** 2)
    assert checks["bound, uniform but for one logit, 0.1 higher"].measured == pytest.approx(nudged, rel=1e-13)


def test_the_gap_grows_linearly_with_the_dimensions() -> None:
    gaps = [check for name, check in by_name().items() if name.startswith("gap / m")]
    assert [check.name.rpartition(" ")[2] for check in gaps] == ["1", "2", "4", "8", "16"]
    assert [check.measured for check in gaps] == pytest.approx([gaps[0].measured] * 5, rel=1e-13)
    assert gaps[0].measured > 4 / 41


def test_the_standard_error_is_that_of_a_mean() -> None:
    # |g|^2 is R^2 times a chi-square with m degrees of freedom, whose variance is 2 m.
    check = by_name(dimensions=5, samples=400, total_return=3.0)["E|g|^2, Gaussian, sigma 1"]
    assert check.standard_error == pytest.approx(9 * math.sqrt(2 * 5 / 400))
    assert abs(check.measured - check.expected) < 4 * check.standard_error
    assert check.measured != check.expected


SHARP = {"E|g|^2, categorical, moderately sharp", "E|g|^2, categorical, very sharp"}
GAUSSIAN = {f"E|g|^2, Gaussian, sigma {sigma}" for sigma in ("1", "0.5", "0.1", "0.1 to 1")}
GAPS = {f"gap / m at sigma 1, m = {size}" for size in (1, 2, 4, 8, 16)}


def test_a_wrong_closed_form_of_the_gaussian_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_moments, "gaussian_closed_form", lambda sigma: float((1 / sigma).sum()))
    assert failed() == GAUSSIAN - {"E|g|^2, Gaussian, sigma 1"}, "1 / sigma is 1 / sigma^2 only at 1"


def test_a_wrong_closed_form_of_the_categorical_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_minus_largest(logits: Tensor) -> float:
        return float((1 - logits.softmax(-1).amax(-1)).sum())

    monkeypatch.setattr(gradient_moments, "categorical_closed_form", one_minus_largest)
    assert failed() == SHARP | GAPS, "the largest probability is |p|^2 only in a uniform policy"


Method = Callable[..., Tensor]


def scaled(method: Method, factor: float) -> Method:
    def wrong(*arguments: Any, **options: Any) -> Tensor:
        return factor * method(*arguments, **options)

    return wrong


def test_a_wrong_log_probability_of_the_categorical_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CategoricalHead, "log_prob", scaled(CategoricalHead.log_prob, 1.01))
    wrong = failed()
    assert wrong >= {"E|g|^2, categorical, uniform", "bound m R^2 (1 - 1/K), uniform"}
    assert wrong >= {"bound, largest of 20 other policies", "update's gradient - weighted cross-entropy's"}
    assert wrong >= {check for check in by_name() if check.startswith("gap")}
    assert not wrong & GAUSSIAN
    assert "update's gradient - weighted squared error's" not in wrong


def test_a_wrong_log_probability_of_the_gaussian_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GaussianHead, "log_prob", scaled(GaussianHead.log_prob, 0.95))
    wrong = failed()
    assert wrong >= GAUSSIAN | GAPS
    assert wrong >= {"gap per dimension at sigma 1, uniform", "update's gradient - weighted squared error's"}
    assert not any("categorical" in name or "bound" in name or "cross-entropy" in name for name in wrong)


def test_a_sampler_that_strays_fails_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def uniform(self: CategoricalHead, params: Tensor, generator: Generator | None = None) -> Tensor:
        return torch.randint(params.shape[-1], params.shape[:-1], generator=generator)

    monkeypatch.setattr(GaussianHead, "sample", scaled(GaussianHead.sample, 1.05))
    assert failed() == GAUSSIAN
    monkeypatch.setattr(CategoricalHead, "sample", uniform)
    assert failed() == GAUSSIAN | SHARP


def test_the_seed_decides_what_is_drawn() -> None:
    assert check_all(samples=100) == check_all(samples=100)
    sampled = [
        [check.measured for check in check_all(samples=100, seed=seed) if check.name in GAUSSIAN] for seed in (1, 2)
    ]
    assert not set(sampled[0]) & set(sampled[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 0}, "dimensions is 0; it must be at least 1"),
        ({"bins": 1}, "bins is 1; it must be at least 2"),
        ({"samples": 99}, "samples is 99; it must be at least 100"),
        ({"total_return": 0.0}, "total return is 0.0; it must be a finite number other than 0"),
        ({"total_return": math.nan}, "total return is nan; it must be a finite number other than 0"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_all(**settings)
    assert str(refused.value) == message
    if "bins" in settings or "samples" in settings:
        with pytest.raises(ConfigError) as refused:
            draw(tmp_path / "picture.png", **settings)
        assert str(refused.value) == message
        assert not (tmp_path / "picture.png").exists()


Array = NDArray[np.float64]


def lines(figure: Figure) -> list[tuple[Array, Array]]:
    (axes,) = figure.axes
    return [
        (np.asarray(line.get_xdata(), dtype=np.float64), np.asarray(line.get_ydata(), dtype=np.float64))
        for line in axes.get_lines()
    ]


def test_the_picture_has_both_families_their_samples_and_the_bound(tmp_path: Path, figures: list[Figure]) -> None:
    draw(tmp_path / "deep" / "picture.png", samples=SAMPLES)
    with Image.open(tmp_path / "deep" / "picture.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 500
    (axes,) = figures[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    gaussian, gaussian_dots, categorical, categorical_dots, bound = lines(figures[0])
    # The range [-1, 1] is 2 wide: sigma = 2 x.
    np.testing.assert_allclose(gaussian[1], 1 / (2 * gaussian[0]) ** 2, rtol=1e-12)
    assert gaussian[0].max() == pytest.approx(0.5)
    np.testing.assert_array_equal(gaussian_dots[0], gaussian[0])
    # A dot's relative standard error is sqrt(2 / 10 000) = 1.4%.
    np.testing.assert_allclose(gaussian_dots[1], gaussian[1], rtol=0.06)
    np.testing.assert_allclose(bound[1], 1 - 1 / 41)
    # The widest bell is nearly uniform, with variance (K + 1) / (3 (K - 1)) on bins from -1 to 1.
    assert categorical[0].max() == pytest.approx(math.sqrt(42 / 120) / 2, rel=1e-3)
    assert categorical[1].max() == pytest.approx(1 - 1 / 41, rel=1e-6)
    assert categorical[1].max() <= 1 - 1 / 41
    # Much wider than a bin and much narrower than the range, |p|^2 is the integral of the squared normal density:
    # 1 / (2 sqrt(pi) s) with s bins as standard deviation.
    middle = (categorical[0] > 0.03) & (categorical[0] < 0.1)
    assert middle.sum() > 10
    expected = 1 - 1 / (2 * math.sqrt(math.pi) * 40 * categorical[0][middle])
    np.testing.assert_allclose(categorical[1][middle], expected, rtol=1e-4)
    # The sharpest bell leaves its bin with probability 1 - p = 0.8%, 80 times in 10 000.
    dots = np.interp(categorical_dots[0], *categorical)
    np.testing.assert_allclose(categorical_dots[1], dots, rtol=0.4)
    np.testing.assert_allclose(categorical_dots[1][dots > 0.5], dots[dots > 0.5], rtol=0.03)
    assert len(categorical_dots[0]) > 8


@pytest.mark.parametrize("bins", [2, 3, 8])
def test_few_bins_make_a_picture_too(bins: int, tmp_path: Path, figures: list[Figure]) -> None:
    draw(tmp_path / "picture.png", bins=bins, samples=100)
    for shares, moments in lines(figures[0]):
        assert (np.isfinite(shares) & np.isfinite(moments) & (moments > 0)).all()
    assert lines(figures[0])[4][1] == pytest.approx([1 - 1 / bins] * 2)
