"""Loggers against the real packages: what TensorBoard and W&B read from what a run wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import ConfigError
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"
WANDB = Path(sys.executable).with_name("wandb")


def small(settings: dict[str, Any] | None = None) -> detent.Config:
    few: dict[str, Any] = {
        "steps": 272,
        "schedule_steps": 272,
        "rollout_steps": 16,
        "env.num_envs": 4,
        "threads": 1,
        "actor.width": 8,
    }
    few |= {"update.minibatches": 2, "update.epochs": 1, "normalize.warmup_steps": 4, "eval.episodes": 2}
    few |= {"eval.interval": 128, "eval.deploy": "mode"}
    return detent.configure(TARGET, overrides={**few, **(settings or {})})


def summaries(run: Path) -> list[dict[str, Any]]:
    """What W&B's own reader says of each of a run's offline directories."""
    records = []
    for directory in sorted((run / "wandb").glob("offline-run-*")):
        command = [str(WANDB), "leet", "inspect", "--json", "--summary", str(directory)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        records.append(json.loads(out))
    return records


def test_wandbs_own_reader_opens_an_offline_run_and_its_continuation(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    options = {"project": "mine", "mode": "offline", "tags": ["a", "b"]}
    config = small({"log": ["wandb"], "log_options": {"wandb": options}})
    detent.train(config, out=tmp_path / "run", on_iteration=lambda row, policy: row["step"] >= 144)
    detent.resume(tmp_path / "run")
    first, second = summaries(tmp_path / "run")
    assert first["run_id"] == second["run_id"], "a resumed run continues the same W&B run"
    assert (first["project"], first["tags"]) == ("mine", ["a", "b"])
    last = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]
    assert second["summary"]["metrics/return"] == last["return"]
    assert second["summary"]["step"] == 272
    assert second["summary"]["status"] == "finished"
    evaluation = read_rows(tmp_path / "run" / "evals.jsonl")[-1]
    for key in ("stochastic", "deterministic", "mean"):
        assert second["summary"][f"evals/{key}/return"] == evaluation[key]["return"]
    assert second["config"]["task"] == TARGET


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_wandb_without_credentials_works_offline_and_never_asks(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    config = small({"steps": 80, "log": ["wandb"], "log_options": {"wandb": {"mode": mode}}})
    with pytest.warns(UserWarning, match="wandb could not start online .*no API key.*wandb sync"):
        assert detent.train(config, out=tmp_path / "run").finished
    assert summaries(tmp_path / "run")[0]["summary"]["step"] == 80


def test_a_server_that_cannot_be_reached_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    # A port of this machine that nobody listens on.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = small({"steps": 80, "log": ["wandb"]})
    try:
        with pytest.warns(UserWarning, match="wandb could not start online"):
            assert detent.train(config, out=tmp_path / "run").finished
    finally:
        wandb.teardown()
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 1


def test_a_missing_logger_refuses_a_new_run_and_not_a_resumed_one(tmp_path: Path) -> None:
    """Without wandb, in a process where it cannot be imported."""
    program = f"""
import sys, warnings
sys.modules["wandb"] = None
import detent
from detent.errors import ConfigError
config = detent.configure("{TARGET}", overrides={{"steps": 272, "schedule_steps": 272, "rollout_steps": 16,
    "env.num_envs": 4, "update.minibatches": 2, "actor.width": 8, "threads": 1, "log": ["wandb"]}})
try:
    detent.train(config, out="new")
except ConfigError as error:
    print(error)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(detent.resume("run").finished, *(str(each.message) for each in caught))
"""
    settings = {"log": ["wandb"], "log_options": {"wandb": {"mode": "offline"}}}
    pytest.importorskip("wandb")
    detent.train(small(settings), out=tmp_path / "run", on_iteration=lambda row, policy: row["step"] >= 144)
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    refused, resumed = done.stdout.splitlines()
    assert refused == "wandb is not installed: pip install wandb"
    assert resumed.startswith("True the run resumes without the logger 'wandb': wandb is not installed")
    assert not (tmp_path / "new").exists()


def test_tensorboard_reads_metrics_and_evaluations_of_a_resumed_run(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    detent.train(small({"tensorboard": True}), out=run, on_iteration=lambda row, policy: row["step"] >= 144)
    detent.resume(run)
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    for name, key in (("metrics", "policy_loss"), ("evals", "mean/return")):
        found = [event.step for event in events.Scalars(f"{name}/{key}")]
        assert found == [row["step"] for row in read_rows(run / f"{name}.jsonl")]


def test_a_logger_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logger 'pathlib:Path' is .*; it must subclass detent.Callback"):
        detent.train(small({"log": ["pathlib:Path"]}), out=tmp_path / "run")
