"""What version 0.1.0 wrote still loads, acts, resumes exactly, repeats and reports; only the public interface is used.

On the processor and with the package versions that wrote the fixtures, every number comes out bit for bit, and with
DETENT_SAME_CPU=1 in the environment these tests demand that. Other processors sum in another order. With PyTorch, MKL,
oneDNN and OpenBLAS held to AVX2 and to SSE, no number of a row or an evaluation moved by more than 2e-5 of itself (but
for sums that cancel to almost nothing, which moved by less than 1e-7), no weight by more than 4e-6, and no action by
more than 3e-8. The runs were chosen for that: few updates, short episodes, few conjugate-gradient iterations.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import detent
from detent.cli import main

OLD = Path(__file__).parent / "fixtures" / "version-0.1.0"
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text())
RUNS = ("run-ppo", "run-envpool-2", "run-trpo")
SAME_CPU = os.environ.get("DETENT_SAME_CPU") == "1"
RELATIVE, ABSOLUTE = (0.0, 0.0) if SAME_CPU else (1e-4, 1e-6)
OF_WEIGHTS = 0.0 if SAME_CPU else 1e-4
OF_ACTIONS = 0.0 if SAME_CPU else 1e-6


def played(run: str, *values: Any) -> Any:
    """A run as a test's parameter, where the test simulates: EnvPool's Hopper has forked processes that share it."""
    elsewhere = run == "run-envpool-2" and sys.platform != "linux"
    marks = [pytest.mark.skipif(elsewhere, reason="two processes share a run on Linux only")]
    return pytest.param(run, *values, marks=marks)


def copied(name: str, to: Path) -> Path:
    """A copy of a fixture, with which a test may do as it likes."""
    source = OLD / name
    if source.is_dir():
        return Path(shutil.copytree(source, to / name))
    return Path(shutil.copy(source, to / name))


def command(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """What a command with --json says."""
    capsys.readouterr()
    command(*words, "--json")
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    """The rows of `<name>.jsonl` without what depends on the clock."""
    found = [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
    return [{renamed(key, row): value for key, value in row.items() if not key.startswith("time/")} for row in found]


def renamed(key: str, row: dict[str, Any]) -> str:
    """PPO's sampled estimate was called `kl`, like TRPO's exact one."""
    return f"approx_{key}" if key.startswith("kl") and "clip_fraction" in row else key


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())


def weights(run: Path, checkpoint: str) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in detent.load(run, checkpoint).state_dict().items()}


def assert_says_all_of(found: Any, expected: Any, where: str) -> None:
    """`found` has everything that `expected` has, numbers as near as the processor allows; it may have new keys."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), where
        for key, value in expected.items():
            assert_says_all_of(found[key], value, f"{where}: {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, value in enumerate(expected):
            assert_says_all_of(found[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=RELATIVE, abs=ABSOLUTE), where
    else:
        assert found == expected, where


def assert_same_run(found: Path, expected: Path) -> None:
    for name in ("metrics", "evals"):
        assert_says_all_of(rows(found, name), rows(expected, name), name)
    assert checkpoints(found) == checkpoints(expected)
    for which in ("best", "latest"):
        old, new = weights(expected, which), weights(found, which)
        assert new.keys() == old.keys()
        for name, tensor in old.items():
            np.testing.assert_allclose(new[name], tensor, OF_WEIGHTS, OF_WEIGHTS, err_msg=f"{which}: {name}")


@pytest.mark.parametrize("run", RUNS)
def test_an_old_policy_acts_as_it_did(run: str, tmp_path: Path) -> None:
    observations = np.array(EXPECTED[run]["observations"], np.float32)
    expected = np.array(EXPECTED[run]["actions"], np.float32)
    policy = detent.load(copied(run, tmp_path))
    np.testing.assert_allclose(policy(observations), expected, OF_ACTIONS, OF_ACTIONS)


@pytest.mark.parametrize("run", [played(run) for run in RUNS])
def test_an_old_policy_is_evaluated_to_the_same_return(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = told(capsys, "eval", copied(run, tmp_path), "--episodes", 6, "--envs", 2, "--threads", 1)
    assert_says_all_of(report, EXPECTED[run]["eval"], run)


@pytest.mark.parametrize(
    ("run", "cut"),
    [
        played("run-ppo", 448),
        # Its best policy is the one that was saved here.
        played("run-ppo", 640),
        played("run-envpool-2", 544),
        played("run-trpo", 256),
    ],
)
def test_an_old_run_that_was_cut_off_goes_on_to_the_same_end(run: str, cut: int, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    for step in checkpoints(copy):
        if step > cut:
            shutil.rmtree(copy / "checkpoints" / str(step))
    command("train", "--resume", copy, "--exact")
    assert_same_run(copy, OLD / run)
    info = json.loads((copy / "run.json").read_text())
    assert info["status"] == "finished"
    # It has gone on from there, and not begun again, which would have come to the same end.
    assert [(back["resumed_at_step"], back["exact"]) for back in info["interruptions"]] == [(cut, True)]


@pytest.mark.parametrize("run", [played(run) for run in RUNS])
def test_training_on_an_old_configuration_repeats_the_run(run: str, tmp_path: Path) -> None:
    config = copied(run, tmp_path) / "config.toml"
    command("train", "--config", config, "--out", tmp_path / "again")
    assert_same_run(tmp_path / "again", OLD / run)


def test_old_runs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in RUNS:
        copied(run, tmp_path)
    report = told(capsys, "report", tmp_path)
    assert (report["runs"], report["complete"], report["problems"]) == (len(RUNS), len(RUNS), [])
    assert Path(report["page"]) == tmp_path / "report" / "index.html"
    assert Path(report["page"]).is_file()


def ids(study: Path) -> list[str]:
    return [run["id"] for run in json.loads((study / "study.json").read_text())["runs"]]


def contents(study: Path) -> dict[Path, bytes]:
    """Every file of a study's runs and their logs."""
    files = (path for name in ("runs", "logs") for path in (study / name).rglob("*") if path.is_file())
    return {path.relative_to(study): path.read_bytes() for path in files}


def test_an_old_study_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = copied("study", tmp_path)
    status = told(capsys, "study", "status", study)
    assert {name: count for name, count in status["counts"].items() if count} == {"finished": 8}
    assert [run["id"] for run in status["runs"]] == ids(OLD / "study")
    assert all(run["step"] == run["total_steps"] == 352 for run in status["runs"])


@pytest.mark.parametrize("file", ["study.toml", "study/study.toml"], ids=["as given", "as laid down"])
def test_running_an_old_study_again_starts_nothing(file: str, tmp_path: Path) -> None:
    study = copied("study", tmp_path)
    copied("study.toml", tmp_path)
    command("study", "run", tmp_path / file, "--out", study)
    assert ids(study) == ids(OLD / "study")
    # A run that is started writes to its log.
    assert contents(study) == contents(OLD / "study")


def test_an_old_study_is_reported_with_all_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = copied("study", tmp_path)
    report = told(capsys, "report", study)
    assert (report["runs"], report["complete"], report["problems"], report["missing"]) == (8, 8, [], [])
    assert Path(report["page"]) == study / "report" / "index.html"
    assert Path(report["page"]).is_file()
