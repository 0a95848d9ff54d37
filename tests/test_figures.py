"""Learning curves are drawn from the rows of a run, the paper's beside them where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from detent.config import save_config
from detent.figures import draw_learning_curves, draw_metric
from detent.paper import paper_score
from detent.presets import configure

# Ant-v4: random -70.288, TD3 3942; so 1935.856 is a score of 0.5, and 401.2288 of return is 0.1 of score.
HALF, TENTH = 1935.856, 401.2288


def make_run(
    path: Path, task: str, variant: str, steps: list[int], preset: str = "paper", seed: int = 1, algo: str = "ppo"
) -> Path:
    path.mkdir()
    config = configure(task, variant=variant, preset=preset, algo=algo, overrides={"seed": seed})
    save_config(config, path / "config.toml")
    rows = [{"step": step, "stochastic": {"return": HALF, "std": TENTH}} for step in steps]
    (path / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def curves(axes: Axes) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Line style and points by label."""
    return {
        str(line.get_label()): (
            str(line.get_linestyle()),
            [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())],
        )
        for line in axes.get_lines()
    }


def test_a_paper_task_is_drawn_as_scores_beside_the_papers_curve(tmp_path: Path, figures: list[Figure]) -> None:
    run = make_run(tmp_path / "run", "Ant-v4", "rn-d", [1024, 500_000, 1_000_000])
    draw_learning_curves([run], tmp_path / "deep" / "curve.png")
    with Image.open(tmp_path / "deep" / "curve.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 500
    (axes,) = figures[0].axes
    drawn = curves(axes)
    assert set(drawn) == {"rn-d, paper, seed 1", "rn-d, the paper (mean of 5 seeds)"}
    style, points = drawn["rn-d, paper, seed 1"]
    assert style == "-"
    assert [x for x, _ in points] == [1024, 500_000, 1_000_000]
    assert [y for _, y in points] == pytest.approx([0.5] * 3)
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).intervaly.tolist() == pytest.approx([0.4, 0.6])
    style, points = drawn["rn-d, the paper (mean of 5 seeds)"]
    assert style == "--"
    assert points[-1][0] == 1_000_000
    for step, score in points:
        assert score == paper_score("ppo", "Ant-v4", "rn-d", int(step))
    assert (axes.get_title(), axes.get_ylabel()) == ("Ant-v4, PPO", "TD3-normalized return")


@pytest.mark.parametrize("task", ["Ant-v5", "detent.envs.scripted:Target-v0"])
def test_a_task_the_paper_does_not_have_is_drawn_as_returns_alone(
    task: str, tmp_path: Path, figures: list[Figure]
) -> None:
    draw_learning_curves([make_run(tmp_path / "run", task, "rn-d", [0, 1000])], tmp_path / "curve.png")
    (axes,) = figures[0].axes
    assert curves(axes) == {"rn-d, paper, seed 1": ("-", [(0, HALF), (1000, HALF)])}
    assert axes.get_ylabel() == "return"


def test_several_runs_share_a_panel_per_task_and_one_paper_line_per_variant(
    tmp_path: Path, figures: list[Figure]
) -> None:
    runs = [
        make_run(tmp_path / "short", "Ant-v4", "rn-d", [0, 100_000]),
        make_run(tmp_path / "long", "Ant-v4", "rn-d", [0, 2_000_000], "fast", seed=2),
        make_run(tmp_path / "gaussian", "Ant-v4", "mlp-c", [0, 100_000], "authors"),
        make_run(tmp_path / "hopper", "Hopper-v4", "rn-d", [0, 6_000_000]),
    ]
    draw_learning_curves(runs, tmp_path / "curve.png")
    ant, hopper = figures[0].axes
    drawn = curves(ant)
    assert {label: style for label, (style, _) in drawn.items()} == {
        "rn-d, paper, seed 1": "-",
        "rn-d, fast, seed 2": "-.",
        "mlp-c, authors, seed 1": ":",
        "rn-d, the paper (mean of 5 seeds)": "--",
        "mlp-c, the paper (mean of 5 seeds)": "--",
    }
    # The short run comes first, and yet the paper's curve goes as far as the long one.
    assert drawn["rn-d, the paper (mean of 5 seeds)"][1][-1][0] == 2_000_000
    assert curves(hopper)["rn-d, the paper (mean of 5 seeds)"][1][-1][0] <= 5_000_000, "where the paper ends"
    colors = {str(line.get_label()): line.get_color() for line in ant.get_lines()}
    assert colors["rn-d, paper, seed 1"] == colors["rn-d, the paper (mean of 5 seeds)"]
    assert colors["rn-d, paper, seed 1"] != colors["mlp-c, authors, seed 1"]


def test_a_run_without_evaluations_yet_does_not_spoil_the_picture(tmp_path: Path, figures: list[Figure]) -> None:
    run = make_run(tmp_path / "run", "Ant-v4", "rn-d", [])
    (run / "evals.jsonl").unlink()
    draw_learning_curves([run], tmp_path / "curve.png")
    assert curves(figures[0].axes[0])["rn-d, paper, seed 1"] == ("-", [])


def test_algorithms_have_panels_of_their_own_with_the_papers_curve_of_that_algorithm(
    tmp_path: Path, figures: list[Figure]
) -> None:
    runs = [make_run(tmp_path / algo, "HalfCheetah-v4", "rn-d", [0, 1_000_000], algo=algo) for algo in ("trpo", "spo")]
    draw_learning_curves(runs, tmp_path / "curve.png")
    assert [axes.get_title() for axes in figures[0].axes] == ["HalfCheetah-v4, SPO", "HalfCheetah-v4, TRPO"]
    for axes, algo in zip(figures[0].axes, ("spo", "trpo"), strict=True):
        step, score = curves(axes)["rn-d, the paper (mean of 5 seeds)"][1][-1]
        assert score == paper_score(algo, "HalfCheetah-v4", "rn-d", int(step))


def test_a_metric_is_drawn_where_a_run_has_it(tmp_path: Path, figures: list[Figure]) -> None:
    run = make_run(tmp_path / "run", "Ant-v4", "rn-d", [])
    rows: list[dict[str, Any]] = [{"step": 10, "grad_variance": 2.0}, {"step": 20}, {"step": 30, "grad_variance": 0.5}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_metric([run], "grad_variance", tmp_path / "metric.png")
    (axes,) = figures[0].axes
    assert curves(axes) == {"rn-d, paper, seed 1": ("-", [(10, 2.0), (30, 0.5)])}
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "grad_variance")
