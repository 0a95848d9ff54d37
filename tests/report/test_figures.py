"""Figures are data; their numbers are derived by hand from the runs that the tests make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

from detent.errors import ConfigError
from detent.paper.scores import paper_score
from detent.report import draw, figures, load, metric_figure, tables
from detent.report.curves import aggregates_of, comparisons_of
from detent.report.spec import Figure, Panel, Series
from detent.report.style import colors

Make = Callable[..., Path]

REFERENCES = {"Ant-v4": (-70.288, 3942.0), "Hopper-v4": (18.791, 3226.0), "Humanoid-v4": (120.423, 5165.0)}


def returns(task: str, scores: list[float]) -> list[float]:
    low, high = REFERENCES[task]
    return [low + score * (high - low) for score in scores]


def made(task: str, variant: str, seed: int, scores: list[float], **more: Any) -> dict[str, Any]:
    return {"task": task, "variant": variant, "seed": seed, "returns": returns(task, scores), **more}


def series_of(panel: Panel, key: str, style: str = "solid") -> Series:
    (found,) = [series for series in panel.series if (series.key, series.style) == (key, style)]
    return found


@pytest.fixture
def study(tmp_path: Path, make_study: Make) -> Path:
    """Two tasks, two variants, two seeds."""
    return make_study(
        tmp_path / "study",
        [
            made("Ant-v4", "rn-d", 1, [0.0, 0.4, 0.8]),
            made("Ant-v4", "rn-d", 2, [0.0, 0.2, 0.6]),
            made("Ant-v4", "mlp-c", 1, [0.0, 0.1, 0.2]),
            made("Ant-v4", "mlp-c", 2, [0.0, 0.1, 0.2]),
            made("Hopper-v4", "rn-d", 1, [0.0, 0.4, 0.4]),
            made("Hopper-v4", "rn-d", 2, [0.0, 0.4, 0.6]),
            made("Hopper-v4", "mlp-c", 1, [0.0, 0.1, 0.4]),
            made("Hopper-v4", "mlp-c", 2, [0.0, 0.1, 0.4]),
        ],
    )


def test_a_tasks_curve_is_the_mean_over_seeds_with_its_interval(study: Path) -> None:
    ant, hopper = figures(load(study))["tasks-ppo"].panels
    assert (ant.title, hopper.title, ant.y.label) == ("Ant-v4, PPO", "Hopper-v4, PPO", "TD3-normalized return")
    curve = series_of(ant, "rn-d")
    assert curve.x.tolist() == [0, 100, 200]
    assert curve.y.tolist() == pytest.approx([0.0, 0.3, 0.7])
    assert curve.low is not None
    assert curve.high is not None
    # Both runs drawn twice each time, at the extremes: a quarter of the resamples each.
    assert curve.low.tolist() == pytest.approx([0.0, 0.2, 0.6])
    assert curve.high.tolist() == pytest.approx([0.0, 0.4, 0.8])
    assert curve.runs is not None
    assert curve.runs.tolist() == [2, 2, 2]


def test_the_aggregate_is_the_mean_over_tasks_and_its_arrow_the_speed_up(study: Path) -> None:
    (panel,) = figures(load(study))["aggregate-ppo"].panels
    assert panel.title == "gym, mean of 2 tasks, PPO"
    # rn-d: (0.3 + 0.4) / 2 and (0.7 + 0.5) / 2; mlp-c: 0.1 and 0.3.
    assert series_of(panel, "rn-d").y.tolist() == pytest.approx([0, 0.35, 0.6])
    assert series_of(panel, "mlp-c").y.tolist() == pytest.approx([0, 0.1, 0.3])
    # rn-d has mlp-c's 0.3 at 100 * 0.3 / 0.35 = 85.7 steps, of 200: 2.33 times sooner.
    arrow = panel.arrow
    assert arrow is not None
    assert (arrow.start, arrow.end, arrow.y) == pytest.approx((600 / 7, 200, 0.3))
    assert (arrow.text, arrow.keys) == ("rn-d 2.3 times sooner than mlp-c", ("rn-d", "mlp-c"))


def test_the_tables_hold_scores_intervals_and_what_they_rest_on(study: Path) -> None:
    found = tables(load(study))
    (row,) = found["scores"].where(task="Ant-v4", group="rn-d").rows()
    assert (row["mean"], row["iqm"], row["seeds"], row["seeds_declared"], row["step"]) == (
        pytest.approx(0.7), pytest.approx(0.7), 2, 2, 200,
    )  # fmt: skip
    # Evaluations 0, .4, .8: the 95th percentile is 0.76; of 0, .2, .6 it is 0.56.
    assert row["p95"] == pytest.approx(0.66)
    (row,) = found["aggregate"].where(group="rn-d").rows()
    assert (row["mean"], row["tasks"], row["runs"]) == (pytest.approx(0.6), 2, 4)
    (row,) = found["improvement"].where(scope="gym (2 tasks)").rows()
    # On Ant always, on Hopper (tie, win) 0.75.
    assert (row["a"], row["b"], row["probability"]) == ("rn-d", "mlp-c", pytest.approx(0.875))
    (row,) = found["speedup"].where(scope="gym (2 tasks)").rows()
    assert (row["speedup"], row["reached_at"], row["target"]) == pytest.approx((7 / 3, 600 / 7, 0.3))
    assert "0.7 [0.6, 0.8]" in found["scores"].to_markdown()


def test_the_papers_curve_stands_beside_ours_as_far_as_ours_goes(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "a", returns("Ant-v4", [0.0, 0.1, 0.2]), every=500_000)
    make_run(tmp_path / "h", returns("Hopper-v4", [0.0, 0.1, 0.2]), task="Hopper-v4", every=500_000)
    drawn = figures(load(tmp_path))
    paper = series_of(drawn["tasks-ppo"].panels[0], "rn-d", "dashed")
    assert paper.x[-1] == 1_000_000
    assert paper.y[-1] == paper_score("ppo", "Ant-v4", "rn-d", 1_000_000)
    # Two of the paper's five tasks: the mean of its curves of these two, not its mean of five.
    mean = series_of(drawn["aggregate-ppo"].panels[0], "rn-d", "dashed")
    both = [paper_score("ppo", task, "rn-d", 1_000_000) for task in ("Ant-v4", "Hopper-v4")]
    assert None not in both
    assert mean.y[-1] == pytest.approx(np.mean([score for score in both if score is not None]))
    scores = tables(load(tmp_path))["scores"]
    assert scores["paper"] == both


def test_runs_evaluated_at_other_steps_are_compared_on_the_line_between_their_evaluations(
    tmp_path: Path, make_run: Make
) -> None:
    make_run(tmp_path / "a", returns("Ant-v4", [0.0, 1.0]), every=200, seed=1)
    make_run(tmp_path / "b", returns("Ant-v4", [0.0, 0.2, 0.2, 0.2]), every=100, seed=2)
    results = load(tmp_path)
    curve = series_of(figures(results)["tasks-ppo"].panels[0], "rn-d")
    assert curve.x.tolist() == [0, 100, 200, 300]
    # At 100 the first run is at 0.5; at 300 only the second one is left.
    assert curve.y.tolist() == pytest.approx([0.0, 0.35, 0.6, 0.2])
    assert curve.runs is not None
    assert curve.runs.tolist() == [2, 2, 2, 1]
    # Compared where the first complete run ends.
    assert tables(results)["scores"]["step"] == [200]
    assert tables(results)["scores"]["mean"] == pytest.approx([0.6])


def test_a_run_that_has_not_got_there_is_not_counted(tmp_path: Path, make_study: Make) -> None:
    runs = [made("Ant-v4", "rn-d", 1, [0.0, 0.5, 1.0]), made("Ant-v4", "rn-d", 2, [0.0, 0.9], steps=200)]
    runs += [made("Ant-v4", "mlp-c", 1, [0.0, 0.9], steps=200)]
    scores = tables(load(make_study(tmp_path / "study", runs)))["scores"]
    (row,) = scores.where(group="rn-d").rows()
    assert (row["mean"], row["seeds"], row["seeds_declared"]) == (pytest.approx(1.0), 1, 2)
    (row,) = scores.where(group="mlp-c").rows()
    assert (row["mean"], row["seeds"], row["seeds_declared"]) == (None, 0, 1)


def test_a_group_that_lacks_a_task_is_not_in_the_aggregate(tmp_path: Path, make_study: Make) -> None:
    runs = [made(task, variant, 1, [0.0, 0.5]) for task in ("Ant-v4", "Hopper-v4") for variant in ("rn-d", "mlp-c")]
    runs.append(made("Ant-v4", "rn-c", 1, [0.0, 0.5]))
    results = load(make_study(tmp_path / "study", runs))
    (aggregate,) = aggregates_of(comparisons_of(results.runs))
    assert (aggregate.groups, aggregate.left_out) == (("rn-d", "mlp-c"), ("rn-c",))


def test_a_sweep_does_not_decide_which_tasks_are_averaged(tmp_path: Path, make_study: Make) -> None:
    runs = [made(task, variant, 1, [0.0, 0.5]) for task in ("Ant-v4", "Hopper-v4") for variant in ("rn-d", "mlp-c")]
    for bins in (5, 11, 21, 101, 301, 1001):
        runs.append(made("Ant-v4", "rn-d", 1, [0.0, 0.4], overrides={"head.bins": bins}))
    results = load(make_study(tmp_path / "study", runs))
    (panel,) = figures(results)["aggregate-ppo"].panels
    assert panel.title == "gym, mean of 2 tasks, PPO"
    assert {series.key for series in panel.series} == {"rn-d", "mlp-c"}
    assert tables(results)["aggregate"]["tasks"] == [2, 2]


def test_a_sweep_without_its_default_has_its_own_figure_and_no_empty_panel(tmp_path: Path, make_run: Make) -> None:
    for bins in (11, 101):
        make_run(tmp_path / str(bins), returns("Ant-v4", [0.0, 0.5]), overrides={"head.bins": bins})
    drawn = figures(load(tmp_path))
    assert set(drawn) == {"bins"}
    assert all(panel.series for figure in drawn.values() for panel in figure.panels)


def test_the_intro_figure_has_a_row_per_benchmark_and_a_column_per_algorithm(tmp_path: Path, make_study: Make) -> None:
    runs = [
        made(task, variant, 1, [0.0, 0.5], algo=algo)
        for task in ("Ant-v4", "Hopper-v4")
        for variant in ("rn-d", "rn-c", "mlp-c")
        for algo in ("spo", "trpo", "ppo")
    ]
    for task in ("PushCube-v1", "PickCube-v1"):
        runs += [
            {"task": task, "variant": variant, "returns": [0.0, 1.0], "success": [0.0, 0.9]}
            for variant in ("rn-d", "mlp-c")
        ]
    figure = figures(load(make_study(tmp_path / "study", runs)))["intro"]
    assert [panel.title for panel in figure.panels] == [
        "gym, mean of 2 tasks, PPO",
        "gym, mean of 2 tasks, TRPO",
        "gym, mean of 2 tasks, SPO",
        "maniskill, mean of 2 tasks, PPO",
    ]
    assert (figure.columns, set(figure.keys)) == (3, {"rn-d", "mlp-c"})


def test_tasks_stand_in_the_order_of_their_table_and_images_last(tmp_path: Path, make_run: Make) -> None:
    for task in ("StackCube-v1", "PickCube-v1", "Own-v0"):
        make_run(tmp_path / task, [0.0, 1.0], task=task, success=[0.0, 0.5])
    images = {"env.obs": "rgb+state"}
    make_run(tmp_path / "images", [0.0, 1.0], task="PickCube-v1", success=[0.0, 0.5], overrides=images)
    make_run(tmp_path / "ant", returns("Ant-v4", [0.0, 1.0]))
    titles = [panel.title for panel in figures(load(tmp_path))["tasks-ppo"].panels]
    names = ("Ant-v4", "PickCube-v1", "StackCube-v1", "Own-v0", "PickCube-v1 rgb")
    assert titles == [f"{name}, PPO" for name in names]


def test_a_group_that_ends_lower_is_never_the_faster_one(tmp_path: Path, make_study: Make) -> None:
    # rn-d is at mlp-c's last score after 100 steps, and below it at the end.
    runs = [
        made(task, variant, seed, scores)
        for task in ("Ant-v4", "Hopper-v4")
        for variant, scores in (("rn-d", [0.0, 0.6, 0.3]), ("mlp-c", [0.0, 0.2, 0.5]))
        for seed in (1, 2)
    ]
    results = load(make_study(tmp_path / "study", runs))
    (row,) = tables(results)["speedup"].where(scope="gym (2 tasks)").rows()
    # mlp-c is at 0.3 after 100 + 100 / 3 of 200 steps.
    assert (row["a"], row["b"], row["speedup"], row["note"]) == ("mlp-c", "rn-d", pytest.approx(1.5), "")
    (panel,) = figures(results)["aggregate-ppo"].panels
    assert panel.arrow is not None
    assert panel.arrow.text == "mlp-c 1.5 times sooner than rn-d"


def test_a_speed_up_from_one_seed_is_marked(tmp_path: Path, make_study: Make) -> None:
    runs = [made("Ant-v4", "rn-d", seed, [0.0, 0.6]) for seed in (1, 2)]
    runs += [made("Hopper-v4", "rn-d", 1, [0.0, 0.6])]
    runs += [made(task, "mlp-c", seed, [0.0, 0.3]) for task in ("Ant-v4", "Hopper-v4") for seed in (1, 2)]
    results = load(make_study(tmp_path / "study", runs))
    (panel,) = figures(results)["aggregate-ppo"].panels
    assert panel.arrow is not None
    assert panel.arrow.text == "rn-d 2.0 times sooner than mlp-c (one seed)"
    speedups = tables(results)["speedup"]
    assert dict(zip(speedups["scope"], speedups["note"], strict=True)) == {
        "gym (2 tasks)": "one seed", "Ant-v4": "", "Hopper-v4": "one seed",
    }  # fmt: skip


def test_one_known_point_of_a_papers_curve_is_left_out(tmp_path: Path, make_run: Make) -> None:
    # The paper's mlp-c on Ant-v4 is hidden behind another curve at the start.
    make_run(tmp_path / "run", returns("Ant-v4", [0.0, 0.1]), variant="mlp-c", every=1_000_000)
    (panel,) = figures(load(tmp_path))["tasks-ppo"].panels
    assert [series.style for series in panel.series] == ["solid"]


def test_plain_returns_are_never_averaged_over_tasks(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "a", [0.0, 1.0], task="Pendulum-v1")
    make_run(tmp_path / "b", [0.0, 1000.0], task="Reacher-v5")
    assert set(figures(load(tmp_path))) == {"tasks-ppo", "wall-clock"}
    assert "aggregate" not in tables(load(tmp_path))


def test_algorithms_have_figures_of_their_own_and_td3_stands_in_each(tmp_path: Path, make_run: Make) -> None:
    for algo in ("ppo", "spo"):
        make_run(tmp_path / algo, returns("Ant-v4", [0.0, 0.5]), algo=algo)
    make_run(tmp_path / "td3", returns("Ant-v4", [0.0, 0.9]), algo="td3", variant="td3", every=50)
    drawn = figures(load(tmp_path))
    for algo in ("ppo", "spo"):
        (panel,) = drawn[f"tasks-{algo}"].panels
        assert panel.title == f"Ant-v4, {algo.upper()}"
        assert series_of(panel, "td3").y.tolist() == pytest.approx([0.0, 0.9])
    (row,) = tables(load(tmp_path))["scores"].where(algo="ppo", group="td3").rows()
    assert (row["mean"], row["step"]) == (pytest.approx(0.9), 50), "its budget is its own"


def test_gradient_variance_is_on_a_logarithmic_scale_by_three_definitions(tmp_path: Path, make_run: Make) -> None:
    names = ("grad_variance", "grad_variance_normalized", "grad_variance_authors")
    for seed, factor in ((1, 1.0), (2, 3.0)):
        rows = [{"step": step, **{name: factor * step for name in names}} for step in (10, 20)]
        make_run(tmp_path / str(seed), returns("Ant-v4", [0.0, 0.1]), seed=seed, metrics=rows)
    results = load(tmp_path)
    drawn = figures(results)
    for name in ("gradient-variance", "gradient-variance-normalized", "gradient-variance-authors"):
        (panel,) = drawn[name].panels
        assert panel.y.log
        assert series_of(panel, "rn-d").y.tolist() == [20, 40]
    assert metric_figure(results, "grad_variance").panels[0].series[0].y.tolist() == [20, 40]
    with pytest.raises(ConfigError, match="no run has a metric 'nonsense'"):
        metric_figure(results, "nonsense")


def test_components_are_mean_snr_against_the_95th_percentile_with_their_correlation(
    tmp_path: Path, make_run: Make
) -> None:
    for variant, snr, top in (("plain-d", 0.1, 0.2), ("residual-d", 0.2, 0.4), ("rn-d", 0.3, 0.6)):
        rows = [{"step": 1, "grad_snr": 0.0}, {"step": 2, "grad_snr": 2 * snr}]
        for task, factor in (("Ant-v4", 1.0), ("Hopper-v4", 2.0)):
            scores = returns(task, [factor * top, factor * top])
            make_run(tmp_path / f"{variant}-{task}", scores, task=task, variant=variant, metrics=rows)
    results = load(tmp_path)
    (row,) = tables(results)["components"].where(group="residual-d").rows()
    # Logged without the bias of 1 / 64 that the paper's form has with 64 minibatches.
    assert (row["snr_corrected"], row["snr"]) == pytest.approx((0.2, 0.2 + 1 / 64))
    assert (row["score_p95"], row["tasks"], row["runs_computed"]) == (pytest.approx(0.6), 2, 2)
    # Scores 0.4 and 0.8: standard deviation with n - 1 is 0.2828.
    assert row["score_p95_std_over_tasks"] == pytest.approx(0.28284, abs=1e-5)
    signal, score = figures(results)["components"].panels
    ratios = [series.y[0] - 1 / 64 for series in signal.series]
    assert ratios == pytest.approx([0.3, 0.1, 0.2]), "in the order of the variants"
    assert "In 6 of 6 runs it is computed from grad_snr and n." in figures(results)["components"].caption
    assert score.title == "PPO: score, correlation 1.00 (gym, mean over 2 tasks)"


def test_the_papers_ratio_is_taken_as_logged_where_it_is(tmp_path: Path, make_run: Make) -> None:
    rows = [{"step": 1, "grad_snr": 0.25}, {"step": 2, "grad_snr": 0.25, "grad_snr_paper": 0.75}]
    overrides = {"update.minibatches": 4}
    make_run(tmp_path / "old", returns("Ant-v4", [0.0, 0.1]), metrics=rows[:1], overrides=overrides)
    make_run(tmp_path / "new", returns("Ant-v4", [0.0, 0.1]), variant="mlp-c", metrics=rows[1:], overrides=overrides)
    make_run(tmp_path / "both", returns("Ant-v4", [0.0, 0.1]), variant="rn-c", metrics=rows, overrides=overrides)
    table = tables(load(tmp_path))["components"]
    assert dict(zip(table["group"], table["snr"], strict=True)) == {"rn-d": 0.5, "rn-c": 0.625, "mlp-c": 0.75}
    assert dict(zip(table["group"], table["runs_computed"], strict=True)) == {"rn-d": 1, "rn-c": 1, "mlp-c": 0}


def test_a_sweep_of_bins_is_points_against_level_lines_and_leaves_the_other_figures(
    tmp_path: Path, make_run: Make
) -> None:
    for bins, end in ((11, 0.5), (41, 0.6), (101, 0.2)):
        for seed in (1, 2):
            scores = returns("Humanoid-v4", [0.0, end + 0.1 * seed])
            settings = {"head.bins": bins}
            make_run(tmp_path / f"{bins}-{seed}", scores, task="Humanoid-v4", seed=seed, overrides=settings)
    make_run(tmp_path / "gaussian", returns("Humanoid-v4", [0.0, 0.3]), task="Humanoid-v4", variant="mlp-c")
    make_run(tmp_path / "td3", returns("Humanoid-v4", [0.0, 0.4]), task="Humanoid-v4", variant="td3", algo="td3")
    results = load(tmp_path)
    drawn = figures(results)
    (panel,) = drawn["bins"].panels
    assert panel.x.log
    curve = series_of(panel, "rn-d")
    assert (curve.x.tolist(), curve.y.tolist()) == ([11, 41, 101], pytest.approx([0.65, 0.75, 0.35]))
    assert series_of(panel, "mlp-c", "level").y.tolist() == pytest.approx([0.3, 0.3])
    assert series_of(panel, "td3", "level").y.tolist() == pytest.approx([0.4, 0.4])
    assert [series.label for series in panel.series] == ["rn-d (default 41)", "td3", "mlp-c"], "highest first"
    assert "Default: 41 (rn-d) on Humanoid-v4." in drawn["bins"].caption
    assert drawn["tasks-ppo"].keys == ("rn-d", "mlp-c", "td3")
    rows = tables(results)["runtime-bins"]
    # The paper's table: 1789, 974 and 721 steps per second.
    assert (rows["bins"], rows["paper_sps"]) == ([11, 41, 101], [1789, 974, 721])


def test_widths_and_the_swapped_loss_have_figures_of_their_own(tmp_path: Path, make_run: Make) -> None:
    for width in (64, 256, 512):
        make_run(tmp_path / str(width), returns("Ant-v4", [0.0, 0.5]), overrides={"actor.width": width})
    for variant in ("loss-swap", "rn-c", "mlp-c"):
        make_run(tmp_path / variant, returns("Ant-v4", [0.0, 0.2]), variant=variant)
    drawn = figures(load(tmp_path))
    assert drawn["width"].keys == ("rn-d · width 64", "rn-d · width 256", "rn-d · width 512")
    (panel,) = drawn["width"].panels
    assert [series.label for series in panel.series if series.style == "solid"] == ["64", "256 (default)", "512"]
    assert panel.legend == "width"
    assert "Default: 256 (rn-d) on Ant-v4." in drawn["width"].caption
    assert drawn["loss-swap"].keys == ("rn-d", "rn-c", "loss-swap")


def test_wall_clock_ends_with_the_first_seed_to_end(tmp_path: Path, make_run: Make) -> None:
    for seed, seconds in ((1, 3600.0), (2, 7200.0)):
        rows = [{"step": 100, "time/iteration": seconds}]
        make_run(tmp_path / str(seed), returns("Ant-v4", [0.0, 1.0]), seed=seed, metrics=rows)
    curve = series_of(figures(load(tmp_path))["wall-clock"].panels[0], "rn-d")
    assert curve.x[-1] == 1.0
    # After an hour the one is done, the other halfway.
    assert curve.y[-1] == pytest.approx(0.75)


def test_runtime_is_the_median_after_the_first_iteration_beside_the_papers(tmp_path: Path, make_run: Make) -> None:
    speeds = [{"step": step, "time/sps": sps, "time/iteration": 36.0} for step, sps in ((1, 5), (2, 90), (100, 110))]
    make_run(tmp_path / "run", returns("Ant-v4", [0.0, 1.0]), metrics=speeds, overrides={"threads": 1})
    (row,) = tables(load(tmp_path))["runtime"].rows()
    # Three iterations of 36 seconds; the paper's 873.8 steps per second and 1.64 hours.
    assert (row["sps"], row["hours"], row["threads"]) == (100.0, pytest.approx(0.03), "1")
    assert (row["paper_sps"], row["paper_hours_of_5M"]) == (873.8, 1.64)


def test_the_same_runs_give_the_same_bytes(study: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw(figures(load(study))["tasks-ppo"], tmp_path / f"{name}.png", tmp_path / f"{name}.svg")
    for ending in ("png", "svg"):
        assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()


def test_matplotlib_draws_the_numbers_of_the_figure(study: Path, tmp_path: Path, figures: list[Canvas]) -> None:
    from detent.report import figures as make

    made_figure: Figure = make(load(study))["tasks-ppo"]
    draw(made_figure, tmp_path / "deep" / "tasks.png")
    with Image.open(tmp_path / "deep" / "tasks.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 500
    axes = figures[0].axes[0]
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}
    assert drawn["rn-d"] == pytest.approx([0.0, 0.3, 0.7])
    assert axes.get_title() == "Ant-v4, PPO"


def test_a_panels_legend_shows_the_lines_as_they_are_drawn(
    tmp_path: Path, make_run: Make, figures: list[Canvas]
) -> None:
    from detent.report import figures as make

    for bins in (11, 41):
        make_run(tmp_path / str(bins), returns("Ant-v4", [0.0, 0.5]), overrides={"head.bins": bins})
    make_run(tmp_path / "gaussian", returns("Ant-v4", [0.0, 0.3]), variant="mlp-c")
    draw(make(load(tmp_path))["bins"], tmp_path / "bins.png")
    (axes,) = figures[0].axes
    legend = axes.get_legend()
    assert legend is not None
    drawn = [(line.get_linestyle(), line.get_color()) for line in axes.get_lines()]
    assert [(line.get_linestyle(), line.get_color()) for line in legend.get_lines()] == drawn
    assert [style for style, _ in drawn] == ["-", ":"]


def test_the_arrows_text_stands_above_the_axes(study: Path, tmp_path: Path, figures: list[Canvas]) -> None:
    from detent.report import figures as make

    draw(make(load(study))["aggregate-ppo"], tmp_path / "aggregate.png")
    (axes,) = figures[0].axes
    (text,) = [text for text in axes.texts if "sooner" in text.get_text()]
    assert text.get_window_extent().y0 >= axes.get_window_extent().y1
    assert not text.get_window_extent().overlaps(axes.title.get_window_extent())


def test_points_of_a_sweep_are_shades_in_order_of_value() -> None:
    found = colors(["rn-d", "rn-d · width 512", "rn-d · width 64", "other"])
    assert found["rn-d · width 64"][0] == "#dd9c2b"
    assert found["rn-d · width 512"][0] == "#4a1a6b"
    assert len(set(found.values())) == 4


def test_a_caption_says_what_a_plain_name_means_under_its_own_algorithm_only(tmp_path: Path, make_study: Make) -> None:
    shared = {"returns": returns("Ant-v4", [0.0, 0.2])}
    runs = [{**shared, "algo": "trpo"}, {**shared, "algo": "trpo", "overrides": {"trpo.max_kl": 0.01}}, shared]
    drawn = figures(load(make_study(tmp_path / "study", runs)))
    assert "Without further words, rn-d: max kl 0.05." in drawn["tasks-trpo"].caption
    assert "Without further words" not in drawn["tasks-ppo"].caption
