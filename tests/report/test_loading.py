"""Directories become runs and tables; what is damaged or missing becomes a sentence, and the rest is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from detent.config.io import to_dict
from detent.config.presets import configure
from detent.errors import ConfigError
from detent.report import load
from detent.report.runs import defaults, departures, flat, measure_of, score_of

Make = Callable[..., Path]

# Ant-v4: random -70.288, TD3 3942. A score of 0.5 is halfway, 1935.856.
ZERO, HALF, ONE = -70.288, 1935.856, 3942.0


def test_a_run_directory_becomes_a_run_with_normalized_scores(tmp_path: Path, make_run: Make) -> None:
    (run,) = load(make_run(tmp_path / "run", [ZERO, HALF, ONE], every=1000, seed=3)).runs
    assert (run.name, run.task, run.algo, run.variant, run.group, run.seed) == (
        "run", "Ant-v4", "ppo", "rn-d", "rn-d", 3,
    )  # fmt: skip
    assert run.at.tolist() == [0, 1000, 2000]
    assert run.scores.tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert (run.measure, run.complete, run.last) == ("TD3-normalized return", True, 2000)
    # Half a minute for each iteration.
    assert run.hours.tolist() == pytest.approx([0, 30 / 3600, 60 / 3600])


def test_a_task_with_successes_is_scored_by_them_and_any_other_by_its_return(tmp_path: Path, make_run: Make) -> None:
    made = {"task": "PushCube-v1", "success": [0.1, 0.9]}
    (run,) = load(make_run(tmp_path / "push", [1.0, 2.0], **made)).runs
    assert (run.measure, run.scores.tolist()) == ("success rate", [0.1, 0.9])
    (run,) = load(make_run(tmp_path / "own", [1.0, 2.0], task="Pendulum-v1")).runs
    assert (run.measure, run.scores.tolist(), run.family) == ("return", [1.0, 2.0], None)


@pytest.mark.parametrize("name", ["success", "success_once"])
def test_success_at_any_time_is_the_score_where_both_kinds_are_reported(name: str) -> None:
    row = {"stochastic": {"return": 3.0, name: 0.75, "success_at_end": 0.5}}
    assert measure_of("PushCube-v1", (row,)) == "success rate"
    assert score_of("success rate", "PushCube-v1", row) == 0.75


@pytest.mark.parametrize("obs", ["state", "rgb"])
@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_a_run_at_another_machines_scale_departs_from_nothing(scale: str, obs: str) -> None:
    config = configure("PushCube-v1", scale=scale, overrides={"env.obs": obs, "env.backend": "physx_cpu"})
    usual = defaults("PushCube-v1", "paper", "rn-d", "ppo", scale, obs, "physx_cpu")
    assert departures(flat(to_dict(config)), usual) == {}


def test_runs_at_different_scales_are_no_copies_of_each_other(tmp_path: Path, make_run: Make) -> None:
    for scale in ("cpu", "gpu"):
        make_run(tmp_path / scale, [1.0], task="PushCube-v1", success=[0.5], overrides={"scale": scale})
    results = load(tmp_path)
    assert results.problems == ()
    assert [run.group for run in results.runs] == ["rn-d · scale cpu", "rn-d · scale gpu"]


def test_runs_are_found_at_any_depth_and_counted_once(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "a" / "deep" / "one", [ZERO], seed=1)
    make_run(tmp_path / "a" / "two", [ZERO], seed=2)
    assert len(load(tmp_path).runs) == 2
    results = load(tmp_path / "a", tmp_path, tmp_path / "a" / "two")
    assert len(results.runs) == 2
    assert results.problems == ()


def test_groups_are_told_apart_by_the_settings_in_which_they_differ(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "plain", [ZERO], overrides={"update.epochs": 5, "threads": 1})
    make_run(tmp_path / "bins", [ZERO], overrides={"update.epochs": 5, "head.bins": 101, "threads": 2})
    make_run(tmp_path / "fast", [ZERO], overrides={"update.epochs": 5}, preset="fast")
    make_run(tmp_path / "other", [ZERO], overrides={"update.epochs": 5}, variant="mlp-c")
    # All have five epochs, so that is not said; threads are no difference in what is trained.
    groups = {run.name: run.group for run in load(tmp_path).runs}
    assert groups == {"plain": "rn-d", "bins": "rn-d · 101 bins", "fast": "rn-d · fast", "other": "mlp-c"}


def test_a_study_says_what_it_is_and_what_is_missing(tmp_path: Path, make_study: Make) -> None:
    study = make_study(
        tmp_path / "study",
        [
            {"returns": [ZERO, HALF], "seed": 1},
            {"returns": [ZERO, HALF], "seed": 2, "steps": 500, "status": "running"},
            {"returns": None, "seed": 3, "steps": 100},
            {"returns": [ZERO], "seed": 4, "steps": 100, "status": "failed"},
        ],
    )
    (study / "runs" / "run3" / "evals.jsonl").unlink()
    results = load(study)
    assert (results.title, results.description, results.cites) == ("made", "A study made by a test.", "figure 9")
    assert results.missing == (
        "Ant-v4, ppo, rn-d, seed 2: 100 of 500 steps (running, or cut off)",
        "Ant-v4, ppo, rn-d, seed 3: not started",
        "Ant-v4, ppo, rn-d, seed 4: no evaluations (failed: )",
    )
    assert [run.seed for run in results.scored] == [1, 2]


def test_a_declared_value_that_is_the_usual_one_makes_no_group(tmp_path: Path, make_study: Make) -> None:
    runs = [{"returns": [ZERO], "overrides": {"head.bins": bins}} for bins in (41, 101)]
    assert {run.group for run in load(make_study(tmp_path / "study", runs)).runs} == {"rn-d", "rn-d · 101 bins"}


def test_critics_of_a_study_are_groups(tmp_path: Path, make_study: Make) -> None:
    runs = [{"returns": [ZERO], "overrides": {"critic.head": head}} for head in ("scalar", "hl-gauss", "two-hot")]
    groups = {run.group for run in load(make_study(tmp_path / "study", runs)).runs}
    assert groups == {"rn-d", "rn-d · hl-gauss critic", "rn-d · two-hot critic"}


def test_a_torn_last_line_is_told_and_the_rows_before_it_are_used(tmp_path: Path, make_run: Make) -> None:
    path = make_run(tmp_path / "run", [ZERO, HALF, ONE])
    for name in ("metrics", "evals"):
        text = (path / f"{name}.jsonl").read_text()
        (path / f"{name}.jsonl").write_text(text[:-20])
    results = load(path)
    assert results.runs[0].scores.tolist() == pytest.approx([0.0, 0.5])
    assert results.problems == (
        f"the last line of {path / 'metrics.jsonl'} is cut off; the 1 rows before it are used",
        f"the last line of {path / 'evals.jsonl'} is cut off; the 2 rows before it are used",
    )
    assert results.missing == ("Ant-v4, ppo, rn-d, seed 1: 100 of 200 steps (finished)",)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (b'{"step": 0}\nnonsense\n{"step": 1}\n', "line 2 of"),
        (b"\xff\xfe\n", "codec"),
        (b'[1]\n{"step": 1, "stochastic": {"return": null}}\n', "2 rows of"),
    ],
)
def test_a_damaged_file_costs_only_its_own_rows(damage: bytes, sentence: str, tmp_path: Path, make_run: Make) -> None:
    whole, damaged = make_run(tmp_path / "whole", [ZERO], seed=1), make_run(tmp_path / "damaged", [ZERO], seed=2)
    (damaged / "evals.jsonl").write_bytes(damage)
    results = load(whole, damaged)
    assert [len(run.at) for run in results.runs] == [1, 0]
    (problem,) = results.problems
    assert sentence in problem
    assert str(damaged / "evals.jsonl") in problem


def test_a_run_whose_configuration_is_damaged_is_left_out_by_name(tmp_path: Path, make_run: Make) -> None:
    whole, damaged = make_run(tmp_path / "whole", [ZERO], seed=1), make_run(tmp_path / "damaged", [ZERO], seed=2)
    (damaged / "config.toml").write_text("task = ")
    results = load(whole, damaged)
    assert [run.name for run in results.runs] == ["whole"]
    assert f"{damaged / 'config.toml'} is not valid TOML" in results.problems[0]
    (damaged / "config.toml").write_text('task = "Ant-v4"')
    assert "names no task, variant, algo, seed and steps" in load(whole, damaged).problems[0]


def test_a_copy_of_a_run_is_no_second_observation(tmp_path: Path, make_run: Make) -> None:
    short, long = make_run(tmp_path / "short", [ZERO], steps=200), make_run(tmp_path / "long", [ZERO, HALF, ONE])
    results = load(short, long)
    assert [run.name for run in results.runs] == ["long"]
    assert results.problems == (f"{short} repeats {long} (same settings, same seed); only the latter counts",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds nothing to report"),
        ("{", "is not the description of a study"),
        ("[]", "is not the description of a study"),
        ('{"runs": [{"id": "a"}]}', "a run lacks path, task, variant, algo, seed, steps"),
    ],
)
def test_what_is_no_study_is_refused_in_words(content: str | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path)
    with pytest.raises(ConfigError, match="there is no directory"):
        load(tmp_path / "absent")


def test_the_tables_are_tidy(tmp_path: Path, make_run: Make) -> None:
    rows = [{"step": 100, "kl": 0.5}, {"step": 200, "kl": None, "entropy": 2.0}]
    results = load(make_run(tmp_path / "run", [ZERO, HALF, ONE], metrics=rows))
    table = results.evaluations_table()
    assert table["step"] == [0, 100, 200]
    assert table["score"] == pytest.approx([0, 0.5, 1])
    assert table["hours"] == [None] * 3, "no row tells the time"
    assert table["stochastic_return"] == [ZERO, HALF, ONE]
    assert set(table["task"]) == {"Ant-v4"}
    metrics = results.metrics_table()
    assert (metrics["step"], metrics["kl"], metrics["entropy"]) == ([100, 200], [0.5, None], [None, 2.0])
    (row,) = results.runs_table().rows()
    assert (row["run"], row["steps"], row["last_score"], row["status"]) == ("run", 200, 1.0, "finished")
    frame = table.where(step=100).to_pandas()
    assert frame.shape == (1, len(table.columns))
    assert frame["score"][0] == pytest.approx(0.5)


def test_a_run_without_run_json_says_that_its_status_is_unknown(tmp_path: Path, make_run: Make) -> None:
    path = make_run(tmp_path / "run", [ZERO], steps=100)
    (path / "run.json").unlink()
    assert load(path).missing == ("Ant-v4, ppo, rn-d, seed 1: 0 of 100 steps (unknown)",)
    (path / "run.json").write_text("{")
    assert "run.json cannot be read" in load(path).problems[0]


def test_image_tasks_have_the_papers_names(tmp_path: Path, make_study: Make) -> None:
    runs = [{"returns": None, "task": "PushCube-v1", "steps": 1, "overrides": {"env.obs": "rgb+state"}}]
    study = make_study(tmp_path / "study", runs)
    assert json.loads((study / "study.json").read_text())["runs"][0]["task"] == "PushCube-v1"
    assert load(study).runs[0].task == "PushCube-v1 rgb"
