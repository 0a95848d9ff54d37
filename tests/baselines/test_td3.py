"""TD3 through Stable-Baselines3: it learns, is evaluated like any run, and starts again when it was cut off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import detent
from detent.cli import main
from detent.config import Config, EnvConfig
from detent.config.io import load_config, save_config
from detent.config.presets import configure
from detent.envs import make_envs
from detent.envs.gymnasium import GymnasiumEnvs
from detent.errors import ConfigError
from detent.seeding import derive_seed
from detent.training.evaluate import evaluate
from detent.training.run import resolve
from detent.training.run_directory import read_rows

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed: pip install 'detent[sb3]'")

from detent.baselines.td3 import SB3Envs, TD3Trainer, load_actor

TARGET = "detent.envs.scripted:Target-v0"


def config(**overrides: Any) -> Config:
    small = {
        "steps": 400,
        "rollout_steps": 100,
        "threads": 1,
        "td3.learning_starts": 100,
        "td3.width": 16,
        "td3.batch_size": 32,
        "td3.learning_rate": 1e-3,
        "eval.interval": 200,
        "eval.episodes": 4,
    }
    return configure(TARGET, variant="td3", algo="td3", overrides=small | overrides)


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_rows(path)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    return detent.train(config(), out=tmp_path_factory.mktemp("td3") / "run").path


def test_it_learns(tmp_path: Path) -> None:
    learning = config(**{"steps": 800, "td3.batch_size": 64, "td3.learning_rate": 3e-3})
    result = detent.train(learning, out=tmp_path / "run")
    before, *_, after = read_rows(tmp_path / "run" / "evals.jsonl")
    assert result.finished
    assert before["deterministic"]["return"] < -0.8
    assert after["deterministic"]["return"] > -0.3


def test_its_files_are_those_of_any_run_and_hold_only_weights(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    assert (info["status"], info["variant"], info["algo"], info["seed"]) == ("finished", "td3", "td3", 1)
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [100, 200, 300, 400]
    # Episodes have 8 steps: 12 of them end in the first 100, and 13 in the second.
    assert [row["episodes"] for row in rows] == [12, 13, 12, 13]
    assert rows[0]["policy_loss"] is None
    assert all(row["time/iteration"] > 0 and row["time/sps"] > 0 for row in rows)
    evaluations = read_rows(run / "evals.jsonl")
    assert [row["step"] for row in evaluations] == [0, 200, 400]
    assert all(row[play]["episodes"] == 4 for row in evaluations for play in ("stochastic", "deterministic"))
    assert load_config(run / "config.toml").td3.width == 16
    kept = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert kept == {"config.toml", "run.json", "metrics.jsonl", "evals.jsonl", "lock"} | {
        "weights/best.safetensors",
        "weights/latest.safetensors",
    }
    assert {key.split(".")[0] for key in load_file(run / "weights" / "latest.safetensors")} == {"actor", "critic"}


def test_kept_weights_play_the_last_evaluation_again(run: Path) -> None:
    resolved = load_config(run / "config.toml")
    assert resolve(resolved) == resolved, "training on a run's configuration repeats it"
    envs = make_envs(TARGET, resolved.env, 4, 1)
    played = evaluate(load_actor(run, "latest"), envs, 4, derive_seed(1, "eval", 4, "deterministic"), "mode")
    assert played.summary(TARGET) == read_rows(run / "evals.jsonl")[-1]["deterministic"]
    action = load_actor(run)(torch.zeros(3, 2))
    # The bounds of Target-v0: [-3, -1] and [0, 10].
    assert action.shape == (3, 2)
    assert (action >= torch.tensor([-3.0, 0.0])).all()
    assert (action <= torch.tensor([-1.0, 10.0])).all()


def test_a_run_that_is_cut_off_starts_again_to_the_same_end(run: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    info = json.loads((cut / "run.json").read_text())
    (cut / "run.json").write_text(json.dumps(info | {"status": "running"}))
    (cut / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    result = detent.resume(cut, exact=True)
    assert (result.finished, result.step) == (True, 400)
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert without_times(cut / name) == without_times(run / name)
    again, once = (load_file(path / "weights" / "latest.safetensors") for path in (cut, run))
    assert all(torch.equal(again[key], once[key]) for key in once)
    with pytest.raises(ConfigError, match="is finished; a td3 run keeps only its weights and cannot be extended"):
        detent.resume(cut, steps=800)


def test_a_stop_leaves_the_weights_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = TD3Trainer._iterate

    def stop_in_the_second(self: TD3Trainer) -> dict[str, Any]:
        if self.iteration == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    monkeypatch.setattr(TD3Trainer, "_iterate", stop_in_the_second)
    save_config(config(), tmp_path / "config.toml")
    assert main(["train", "--config", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]) == 3
    assert "stopped at step 200" in capsys.readouterr().out
    assert (tmp_path / "run" / "weights" / "latest.safetensors").exists()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


def test_episodes_end_for_sb3_as_they_do_for_detent() -> None:
    # Two environments play the three episodes of Scripted-v0; all their rewards and ends are known.
    inner = GymnasiumEnvs("detent.envs.scripted:Scripted-v0", 2, EnvConfig(backend="gymnasium"))
    envs = SB3Envs(inner, seed=5)
    envs.reset()
    ends: list[tuple[tuple[float, ...], float, bool]] = []
    for _ in range(12):
        observation, reward, done, infos = envs.step(np.zeros((2, 1), np.float32))
        for row in np.flatnonzero(done):
            final = tuple(infos[row]["terminal_observation"].tolist())
            ends.append((final, float(reward[row]), infos[row]["TimeLimit.truncated"]))
            assert np.asarray(observation)[row][1] == 0, "the next episode has begun"
        assert all(not info for info, ended in zip(infos, done, strict=True) if not ended)
    # (episode, length): last reward, and whether only time ended it. Both at once is termination.
    expected: dict[tuple[float, ...], tuple[float, bool]]
    expected = {(0.0, 3.0): (3.0, False), (1.0, 2.0): (20.0, True), (2.0, 1.0): (100.0, False)}
    assert {final for final, _, _ in ends} == set(expected)
    assert all(expected[final] == (reward, truncated) for final, reward, truncated in ends)
    assert len(envs.episodes) == len(ends)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--variant td3", "'td3' has networks of its own: give both --variant td3 and --algo td3"),
        ("--algo td3", "'td3' has networks of its own: give both --variant td3 and --algo td3"),
        ("--variant td3 --algo td3 --bins 11", "the algorithm is td3, which takes no head.* settings"),
        ("--variant td3 --algo td3 --update.epochs 2", "the algorithm is td3, which takes no update.* settings"),
        ("--variant td3 --algo td3 --ppo.clip 0.1", "the algorithm is td3, which takes no ppo.* settings"),
        ("--variant td3 --algo td3 --td3.tau 2", "td3.tau is 2.0; it must lie in [0, 1]"),
        ("--variant td3 --algo td3 --td3.batch-size 0", "td3.batch_size is 0; it must be at least 1"),
        ("--variant td3 --algo td3 --init-from x", "a TD3 run cannot start from another run"),
        ("--td3.tau 0.1", "the algorithm is ppo, which takes no td3.* settings"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", TARGET, "--threads", "1", *words.split(), "--out", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_td3_run_is_no_detent_policy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run)]) == 2
    assert "is a td3 run, which has no Detent policy; its weights are in" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no TD3 weights 'worst'"):
        load_actor(run, "worst")


def test_without_stable_baselines_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "detent.baselines.td3")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert (
        main(["train", TARGET, "--variant", "td3", "--algo", "td3", "--threads", "1", "--out", str(tmp_path / "run")])
        == 2
    )
    assert "TD3 needs Stable-Baselines3: pip install 'detent[sb3]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
