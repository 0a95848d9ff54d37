"""rliable 1.2.0 is the oracle where it has the statistic; the rest is derived by hand beside each test."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from rliable import library, metrics

from detent.report import stats

Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def seeded_rliable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed rliable, which accepts a random state and draws from NumPy's global one."""
    monkeypatch.setattr("rliable.library.np.random.choice", np.random.RandomState(1).choice)


def scores(runs: int, tasks: int, seed: int, shift: float = 0.0) -> Array:
    """Scores [runs, tasks], as rliable takes them; rounded, so that there are ties."""
    return (np.random.default_rng(seed).normal(shift, 1.0, size=(runs, tasks)) + np.arange(tasks) / 3).round(1)


def by_task(array: Array) -> list[Array]:
    return list(array.T)


SIZES = [(2, 1), (3, 5), (5, 1), (5, 5), (10, 3)]


@pytest.mark.parametrize(("runs", "tasks"), [*SIZES, (1, 1), (1, 4)])
def test_the_interquartile_mean_and_the_mean_are_rliables(runs: int, tasks: int) -> None:
    array = scores(runs, tasks, seed=runs)
    assert stats.iqm(by_task(array)).value == pytest.approx(metrics.aggregate_iqm(array), abs=1e-12)
    assert stats.mean(by_task(array)).value == pytest.approx(metrics.aggregate_mean(array), abs=1e-12)


@pytest.mark.parametrize(("runs", "tasks"), [(3, 5), (8, 1)])
@pytest.mark.parametrize("name", ["iqm", "mean"])
def test_stratified_bootstrap_intervals_are_rliables(name: str, runs: int, tasks: int) -> None:
    array = np.random.default_rng(runs).normal(size=(runs, tasks)) + np.arange(tasks)
    function = {"iqm": metrics.aggregate_iqm, "mean": metrics.aggregate_mean}[name]
    _, intervals = library.get_interval_estimates({"a": array}, lambda drawn: np.array([function(drawn)]), reps=2000)
    ours = {"iqm": stats.iqm, "mean": stats.mean}[name](by_task(array))
    # Two bootstraps of their own. The end of a 95% interval, drawn 2000 times, has a standard deviation of 0.06 of that
    # of the mean, which is 0.015 of the width; a 90% interval would be 0.08 of the width off at each end.
    assert [ours.low, ours.high] == pytest.approx(intervals["a"][:, 0], abs=0.06 * (ours.high - ours.low))


def test_an_interval_is_stratified_so_that_a_difference_between_tasks_does_not_widen_it() -> None:
    # Within each task all runs are equal: resampling runs within tasks changes nothing.
    estimate = stats.mean([np.array([0.0, 0.0, 0.0]), np.array([10.0, 10.0, 10.0])])
    assert (estimate.value, estimate.low, estimate.high, estimate.runs) == (5.0, 5.0, 5.0, 6)


@pytest.mark.parametrize(("runs", "tasks"), SIZES)
def test_the_probability_of_improvement_is_rliables(runs: int, tasks: int) -> None:
    x, y = scores(runs, tasks, 1, shift=0.5), scores(runs + 1, tasks, 2)
    ours = stats.probability_of_improvement(by_task(x), by_task(y))
    assert ours.value == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-12)


@pytest.mark.parametrize(("runs", "tasks"), [(5, 1), (4, 2)])
def test_the_interval_of_the_probability_of_improvement_is_rliables(runs: int, tasks: int) -> None:
    x, y = scores(runs, tasks, 1, shift=0.5), scores(runs + 1, tasks, 2)
    _, intervals = library.get_interval_estimates({"pair": (x, y)}, metrics.probability_of_improvement, reps=400)
    ours = stats.probability_of_improvement(by_task(x), by_task(y))
    # Probabilities of few runs come in steps of 1 / (runs (runs + 1) tasks), here up to 0.033.
    assert [ours.low, ours.high] == pytest.approx(np.ravel(intervals["pair"]), abs=0.08)


def test_a_tie_counts_half() -> None:
    # 1 > 0, 1 = 1, 1 < 2: (1 + 1/2 + 0) / 3.
    assert stats.probability_of_improvement([np.array([1.0])], [np.array([0.0, 1.0, 2.0])]).value == pytest.approx(0.5)
    # On the second task always better: (0.5 + 1) / 2.
    x, y = [np.array([1.0]), np.array([9.0])], [np.array([0.0, 1.0, 2.0]), np.array([1.0])]
    assert stats.probability_of_improvement(x, y).value == pytest.approx(0.75)


def test_performance_profiles_are_rliables() -> None:
    array, thresholds = scores(5, 4, 3), np.linspace(-1, 2, 13)
    profiles, intervals = library.create_performance_profile({"a": array}, thresholds, reps=2000)
    ours = stats.performance_profile(by_task(array), thresholds)
    np.testing.assert_allclose(ours.value, profiles["a"], atol=1e-12)
    np.testing.assert_allclose([ours.low, ours.high], intervals["a"], atol=0.06)
    assert ours.runs.tolist() == [20] * 13


def test_the_interquartile_mean_cuts_a_quarter_rounded_down_off_each_end() -> None:
    # Of five, one each side: (2 + 3 + 4) / 3. Of three, none: 104 / 3.
    assert stats.interquartile_mean(np.array([100.0, 3.0, 2.0, 4.0, -50.0])) == pytest.approx(3.0)
    assert stats.interquartile_mean(np.array([1.0, 3.0, 100.0])) == pytest.approx(104 / 3)


def test_one_run_has_a_value_and_no_interval() -> None:
    for estimate in (
        stats.mean([np.array([1.0, 2.0]), np.array([3.0])]),
        stats.iqm([np.array([2.25])]),
        stats.probability_of_improvement([np.array([1.0])], [np.array([0.0, 2.0])]),
    ):
        assert np.isfinite(estimate.value)
        assert np.isnan([estimate.low, estimate.high]).all()


def test_the_seed_alone_decides_the_interval() -> None:
    tasks = list(np.random.default_rng(1).normal(size=(3, 4)))
    first = stats.iqm(tasks, seed=7)
    stats.mean(tasks, seed=7)
    assert stats.iqm(tasks, seed=7) == first
    assert stats.iqm(tasks, seed=8) != first


def test_each_point_of_a_mean_curve_is_over_the_runs_that_have_it() -> None:
    nan = np.nan
    tasks = [np.array([[0.0, 2.0, 4.0], [2.0, 4.0, nan]]), np.array([[4.0, 5.0, nan], [6.0, 7.0, nan]])]
    band = stats.mean_curve(tasks)
    # First point: (1 + 5) / 2. Second: (3 + 6) / 2. At the third the second task has no run.
    np.testing.assert_allclose(band.value, [3.0, 4.5, nan])
    assert band.runs.tolist() == [4, 4, 1]
    # Means of two runs drawn from {0, 2} and {4, 6}: at least (0 + 4) / 2, at most (2 + 6) / 2.
    np.testing.assert_allclose([band.low[0], band.high[0]], [2.0, 4.0])
    alone = stats.mean_curve([np.array([[1.0, 2.0], [3.0, nan]])])
    np.testing.assert_allclose(alone.value, [2.0, 2.0])
    assert np.isfinite(alone.low[0])
    assert np.isnan(alone.low[1]), "one run is left there"


def test_a_curve_reaches_a_score_on_the_line_between_two_points() -> None:
    steps, curve = np.array([0.0, 100.0, 200.0]), np.array([0.0, 1.0, 3.0])
    # 2 is half of the way from 1 to 3.
    assert stats.steps_to_reach(steps, curve, np.array(2.0)) == 150
    assert stats.steps_to_reach(steps, curve, np.array(1.0)) == 100
    assert stats.steps_to_reach(steps, curve, np.array(-1.0)) == 0
    assert stats.steps_to_reach(steps, curve, np.array(4.0)) == np.inf
    both = stats.steps_to_reach(steps, np.stack([curve, 2 * curve]), np.array([2.0, 2.0]))
    assert both.tolist() == [150, 100]


def test_the_first_crossing_counts_even_if_the_curve_falls_again() -> None:
    steps, curve = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.0, 2.0, 0.0, 4.0])
    assert stats.steps_to_reach(steps, curve, np.array(1.0)) == 5


def test_speed_up_is_the_last_step_over_the_step_where_the_other_ends_score_is_reached() -> None:
    steps = np.array([0.0, 100.0, 200.0])
    fast, slow = np.array([[0.0, 4.0, 8.0], [0.0, 4.0, 8.0]]), np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    # The slow one ends at 2, which the fast one has at step 50: 200 / 50.
    gain = stats.speedup(steps, [fast], [slow])
    assert (gain.value, gain.low, gain.high) == (4.0, 4.0, 4.0)
    assert stats.speedup(steps, [slow], [fast]).value == 0, "never reached"


def test_speed_up_has_an_interval_over_seeds() -> None:
    steps = np.array([0.0, 100.0, 200.0])
    # Alone, the first run reaches 2 at step 50 and the second at step 100: between 2 and 4 times sooner.
    a, b = np.array([[0.0, 4.0, 8.0], [0.0, 2.0, 8.0]]), np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    gain = stats.speedup(steps, [a], [b])
    # Their mean has 3 at step 100, so 2 at step 66.7: 3 times.
    assert gain.value == pytest.approx(3.0)
    assert (gain.low, gain.high) == pytest.approx((2.0, 4.0))


def test_the_95th_percentile_leaves_out_the_luckiest_evaluations() -> None:
    # 0, 1, ..., 100: the 95th percentile is 95.
    assert stats.percentile_over_training(np.arange(101.0)) == pytest.approx(95.0)
