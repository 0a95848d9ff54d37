"""Whole runs on small tasks: they learn, they resume exactly, and they end as they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import detent
from detent.acceleration.worker_group import supported
from detent.config import Config
from detent.config.io import load_config
from detent.envs import Episode
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.policy import Policy
from detent.rollouts.rollout import NonFiniteError
from detent.training.dispatch import Callbacks
from detent.training.evaluate import Evaluation
from detent.training.run import resolve
from detent.training.run_directory import RunLog, read_rows
from detent.training.trainer import Trainer

TARGET = "detent.envs.scripted:Target-v0"


def small(
    overrides: dict[str, Any] | None = None, task: str = TARGET, variant: str = "rn-d", algo: str = "ppo"
) -> Config:
    """A run of a few seconds."""
    settings = {
        "threads": 1,
        "steps": 2048,
        "rollout_steps": 32,
        "env.num_envs": 4,
        "update.minibatches": 4,
        "update.epochs": 2,
        "actor.width": 16,
        "eval.episodes": 2,
        "eval.interval": 512,
        "checkpoint.interval": 256,
        "normalize.warmup_steps": 8,
    }
    return detent.configure(task, variant=variant, algo=algo, overrides=settings | (overrides or {}))


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    """Rows without what depends on the clock."""
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_rows(run / f"{name}.jsonl")
    ]


def assert_same_run(left: Path, right: Path) -> None:
    assert rows(left, "metrics") == rows(right, "metrics")
    assert rows(left, "evals") == rows(right, "evals")
    assert checkpoints.steps(left) == checkpoints.steps(right)
    for step in checkpoints.steps(left):
        for name in ("policy", "trainer"):
            one = load_file(checkpoints.directory(left, step) / f"{name}.safetensors")
            two = load_file(checkpoints.directory(right, step) / f"{name}.safetensors")
            assert one.keys() == two.keys()
            for key in one:
                assert torch.equal(one[key], two[key]), (step, key)


@pytest.mark.parametrize(
    ("algo", "variant"),
    [
        *(("ppo", variant) for variant in ("rn-d", "rn-c", "mlp-d", "mlp-c", "loss-swap")),
        ("spo", "rn-d"),
        ("trpo", "rn-d"),
        ("trpo", "mlp-c"),
    ],
)
def test_every_actor_and_algorithm_learns_the_target_task(algo: str, variant: str, tmp_path: Path) -> None:
    # A uniformly random action earns about -2.5 per episode here; an actor that knows the target approaches 0.
    config = small(
        {
            "steps": 20_000,
            "schedule_steps": 20_000,
            "rollout_steps": 64,
            "env.num_envs": 8,
            "update.epochs": 10,
            "update.minibatches": 8,
            "update.learning_rate": 1e-3,
            "actor.width": 32,
            "eval.episodes": 50,
            "eval.interval": 20_000,
            "head.mean": "squashed",
            **({"trpo.max_kl": 0.1} if algo == "trpo" else {}),
        },
        variant=variant,
        algo=algo,
    )
    detent.train(config, out=tmp_path / "run")
    first, *_, last = read_rows(tmp_path / "run" / "evals.jsonl")
    before, after = first["stochastic"]["return"], last["stochastic"]["return"]
    assert after > before / 4, (before, after)
    assert last["deterministic"]["return"] > before / 10, (before, last["deterministic"]["return"])


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        detent.train(small({"seed": seed}), out=tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert rows(tmp_path / "one", "metrics") != rows(tmp_path / "other", "metrics")


def test_evaluation_changes_nothing_in_training(tmp_path: Path) -> None:
    detent.train(small(), out=tmp_path / "often")
    detent.train(small({"eval.interval": 2048, "eval.episodes": 3}), out=tmp_path / "once")
    assert rows(tmp_path / "often", "metrics") == rows(tmp_path / "once", "metrics")


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        (TARGET, {}),
        ("Hopper-v4", {"env.backend": "envpool"}),
        ("Hopper-v4", {"env.backend": "gymnasium"}),
        (TARGET, {"env.processes": True, "steps": 1024}),
    ],
)
def test_killed_at_any_moment_and_resumed_is_equal_to_the_bit(
    task: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    config = small(overrides, task)
    detent.train(config, out=tmp_path / "whole")
    script = (
        "import sys, detent; from pathlib import Path; from detent.config.io import load_config\n"
        "run = Path(sys.argv[2])\n"
        "if __name__ == '__main__':\n"
        "    if run.exists(): detent.resume(run)\n"
        "    else: detent.train(load_config(Path(sys.argv[1])), out=run)\n"
    )
    (tmp_path / "main.py").write_text(script)
    whole_config = tmp_path / "whole" / "config.toml"
    random = np.random.default_rng(5)
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "main.py"), str(whole_config), str(tmp_path / "cut")]
        )
        # Kill when a random number of further rows is there, and a random moment later.
        target = len(rows_so_far(tmp_path / "cut")) + int(random.integers(1, 6))
        while process.poll() is None and len(rows_so_far(tmp_path / "cut")) < target:
            time.sleep(0.005)
        time.sleep(float(random.uniform(0, 0.05)))
        process.kill()
        process.wait()
        assert round_ > 0 or process.returncode == -signal.SIGKILL
    if json.loads((tmp_path / "cut" / "run.json").read_text())["status"] != "finished":
        detent.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    info = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["interruptions"]
    assert all(entry["exact"] for entry in info["interruptions"])


@pytest.mark.parametrize(("algo", "processes"), [("ppo", 2), ("spo", 0), ("trpo", 0)])
def test_every_algorithm_resumes_to_the_bit(algo: str, processes: int, tmp_path: Path) -> None:
    config = small({"steps": 1024, "update.processes": processes}, algo=algo)
    detent.train(config, out=tmp_path / "whole")

    def crash_in_iteration_five(row: dict[str, Any], policy: Policy) -> None:
        if row["iteration"] == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash_in_iteration_five)
    assert detent.resume(tmp_path / "cut").finished
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("settings", "algo", "sentence"),
    [
        ({"update.processes": 2}, "trpo", "update.processes is 2, but trpo updates in one process"),
        ({"update.processes": 33}, "ppo", "update.processes is 33, but a minibatch has 32 rows"),
        (
            {"update.compile": True},
            "trpo",
            "update.compile cannot be used: it is for the minibatch updates of ppo",
        ),
    ],
)
def test_ways_to_update_that_cannot_be_used_are_refused(settings: dict[str, Any], algo: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve(small(settings, algo=algo))


@pytest.mark.parametrize(
    ("settings", "algo", "sentence"),
    [
        ({}, "sac", "there is no algo 'sac'; valid: ppo, spo, td3, trpo"),
        ({}, "pppo", "there is no algo 'pppo'; did you mean ppo?"),
        ({"env.backend": "gymnasum"}, "ppo", "env.backend is 'gymnasum', and there is no simulator of that name"),
        ({"env.backend": "gymnasum"}, "ppo", "did you mean gymnasium?"),
        ({"actor.kind": "cnn"}, "ppo", "actor.kind is 'cnn', and there is no trunk of that name"),
        ({"actor.kind": "cnn"}, "ppo", "valid: bronet, mlp, rn, simba"),
        ({"critic.kind": "ml"}, "trpo", "critic.kind is 'ml', and there is no trunk of that name"),
        ({"critic.head": "scalr"}, "ppo", "critic.head is 'scalr', and there is no critic of that name"),
        ({"head.kind": "gausian"}, "ppo", "head.kind is 'gausian', and there is no head of that name"),
        ({"encoder.kind": "natur"}, "ppo", "encoder.kind is 'natur', and there is no encoder of that name"),
        ({"head.options": {"heat": 1}}, "ppo", "head.options has heat; head 'categorical' takes no options"),
    ],
)
def test_names_that_nobody_knows_are_answered_with_the_valid_ones(
    settings: dict[str, Any], algo: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        resolve(small(settings, algo=algo))


@pytest.mark.parametrize(("threads", "minibatches", "processes"), [(1, 4, 1), (2, 2, 2), (2, 4, 1), (8, 1, 4)])
def test_each_thread_is_a_process_of_the_update_while_it_has_32_rows(
    threads: int, minibatches: int, processes: int
) -> None:
    config = resolve(small({"threads": threads, "update.minibatches": minibatches}))
    assert config.update.processes == processes


def rows_so_far(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_resume_drops_rows_past_the_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small(), out=run)
    shutil.copytree(run, tmp_path / "whole")
    last = checkpoints.steps(run)[-1]
    shutil.rmtree(checkpoints.directory(run, last))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')
    detent.resume(run)
    assert_same_run(tmp_path / "whole", run)


def test_stopping_on_request_saves_everything_and_resuming_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def stop_in_iteration_three(row: dict[str, Any], policy: Policy) -> None:
        if row["iteration"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    result = detent.train(small(), out=run, on_iteration=stop_in_iteration_three)
    assert not result.finished
    assert rows(run, "metrics")[-1]["iteration"] == 3
    assert checkpoints.read_state(checkpoints.locate(run, "latest")).kind == "final"
    assert json.loads((run / "run.json").read_text())["status"] == "stopped"
    assert detent.resume(run).finished
    assert [row["iteration"] for row in rows(run, "metrics")] == list(
        range(1, load_config(run / "config.toml").iterations + 1)
    )
    interruptions = json.loads((run / "run.json").read_text())["interruptions"]
    assert interruptions == [{"resumed_at_step": 32 + 3 * 128, "exact": False}]


def test_exact_resume_goes_back_to_the_last_scheduled_checkpoint(tmp_path: Path) -> None:
    detent.train(small(), out=tmp_path / "whole")
    run = tmp_path / "run"
    detent.train(small(), out=run, on_iteration=lambda row, _: row["iteration"] == 5)
    detent.resume(run, exact=True)
    assert_same_run(tmp_path / "whole", run)


def test_exact_resume_never_throws_work_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"checkpoint.keep": 1, "checkpoint.interval": 1024, "eval.interval": 2048}
    detent.train(small(settings), out=run, on_iteration=lambda row, _: row["iteration"] == 5)
    before = rows(run, "metrics")
    with pytest.raises(ConfigError, match="no scheduled checkpoint to go back to"):
        detent.resume(run, exact=True)
    assert rows(run, "metrics") == before
    assert detent.resume(run).finished, "the lock was given back"


def test_a_crash_before_the_first_checkpoint_leaves_no_second_first_evaluation(tmp_path: Path) -> None:
    config = small({"normalize.observation": False, "steps": 512})
    detent.train(config, out=tmp_path / "whole")

    def crash(row: dict[str, Any], policy: Policy) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash)
    detent.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_killed_just_before_it_said_finished_is_finished_by_resuming(tmp_path: Path) -> None:
    run = tmp_path / "run"
    last = detent.train(small({"steps": 256}), out=run).evaluation
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))
    result = detent.resume(run)
    assert result.finished
    assert result.evaluation == last
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def test_hook_sees_rows_and_policy_and_can_stop_the_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def hook(row: dict[str, Any], policy: Policy) -> bool:
        seen.append(row["iteration"])
        assert policy(np.zeros(policy.spec.observation.size)).shape == (policy.spec.action.size,)
        return bool(row["iteration"] == 2)

    result = detent.train(small(), out=tmp_path / "run", on_iteration=hook)
    assert seen == [1, 2]
    assert not result.finished


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small({"steps": 1024 + 32}), out=run)
    with pytest.raises(ConfigError, match="--steps extends it"):
        detent.resume(run)
    detent.resume(run, steps=2048)
    detent.train(small(), out=tmp_path / "long")
    # The end fell on a scheduled checkpoint, so the extended run is the long run.
    assert rows(run, "metrics") == rows(tmp_path / "long", "metrics")
    with pytest.raises(ConfigError, match="not shorten"):
        detent.resume(run, steps=512)


def test_fine_tuning_starts_from_the_other_runs_best_policy(tmp_path: Path) -> None:
    detent.train(small(), out=tmp_path / "source")
    source = detent.load(tmp_path / "source")
    seen: list[dict[str, torch.Tensor]] = []
    config = small({"seed": 9, "init_from": str(tmp_path / "source"), "steps": 128, "update.learning_rate": 1e-30})
    detent.train(
        config, out=tmp_path / "tuned", on_iteration=lambda _, policy: seen.append(dict(policy.named_parameters()))
    )
    for key, value in source.named_parameters():
        torch.testing.assert_close(seen[0][key], value)
    for changes, different in (
        ({"head.bins": 5}, "head.bins is 5, not 41"),
        ({"normalize.clip": 5.0}, "normalize.clip is 5.0"),
    ):
        with pytest.raises(ConfigError, match=f"does not fit this run: {different}"):
            detent.train(small({"init_from": str(tmp_path / "source"), **changes}), out=tmp_path / "bad")
        assert not (tmp_path / "bad").exists()


def test_a_resumed_fine_tuning_run_does_not_look_at_its_source_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detent.train(small({"steps": 256}), out=tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    config = small({"init_from": "source", "steps": 512})
    detent.train(config, out=tmp_path / "whole")

    def crash(row: dict[str, Any], policy: Policy) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash)
    shutil.rmtree(tmp_path / "source")
    detent.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert load_config(tmp_path / "cut" / "config.toml").init_from == str(tmp_path / "source")


def test_a_configuration_that_is_not_what_its_names_say_is_refused(tmp_path: Path) -> None:
    for config, sentence in (
        (Config(task=TARGET, variant="mlp-c"), "variant 'mlp-c' has actor.kind mlp, this configuration rn"),
        (Config(task=TARGET, algo="sp0"), "there is no algo 'sp0'"),
        (small({"actor.layer_norm": False}), "variant 'rn-d' has actor.layer_norm True, this configuration False"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            detent.train(config, out=tmp_path / "run")
    assert detent.train(
        small({"actor.layer_norm": False, "steps": 128}, variant="custom"), out=tmp_path / "run"
    ).finished


def test_success_goes_before_return_and_silence_means_none(tmp_path: Path) -> None:
    trainer = Trainer(resolve(small()), Callbacks())
    assert trainer._improves((0.0, 900.0))
    assert trainer._improves((0.1, 50.0)), "the first success counts more than any return"
    assert not trainer._improves((0.0, 5000.0))
    assert trainer._improves((0.1, 60.0))
    trainer.close()
    episodes = (Episode(0, 1.0, 5, success=1.0), Episode(1, 1.0, 5), Episode(2, 1.0, 5), Episode(3, 1.0, 5))
    assert Evaluation(episodes, 0.0).summary(TARGET)["success_once"] == 0.25
    assert "success_once" not in Evaluation(episodes[1:], 0.0).summary(TARGET)


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small({"steps": 128}), out=run)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        detent.train(small({"steps": 128}), out=run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small({"steps": 128}), out=run)
    log, _ = RunLog.reopen(run)
    with pytest.raises(RuntimeError, match=f"in use by process {os.getpid()}"):
        detent.resume(run, steps=256)
    log.close()
    assert detent.resume(run, steps=256).finished


@pytest.mark.parametrize("what", ["observation 'state'", "reward"])
@pytest.mark.parametrize(("algo", "processes"), [("ppo", 1), ("trpo", 1), ("ppo", 2)])
def test_non_finite_numbers_stop_the_run_with_the_environment_named(
    algo: str, processes: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.broken_env.BrokenEnv.steps_left", {what: 3000})
    if processes > 1 and not supported():
        pytest.skip("needs fork (Linux)")
    run = tmp_path / "run"
    settings = {"steps": 4096, "env.kwargs": {"what": what}, "update.processes": processes}
    config = small(settings, "tests.broken_env:Broken-v0", algo=algo)
    with pytest.raises(NonFiniteError, match=f"environment [0-3] gave a non-finite {what}"):
        detent.train(config, out=run)
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "failed"
    assert "non-finite" in info["exit_reason"]
    assert detent.load(run, "latest")(np.zeros(2)).shape == (1,), "the last good checkpoint is kept"


def test_automatic_settings_are_made_definite(tmp_path: Path) -> None:
    config = resolve(detent.configure("Hopper-v4"))
    assert config.threads >= 1
    assert config.device in ("cpu", "cuda")
    assert config.env.backend == "envpool"
    assert config.eval.interval == 250_000
    assert config.checkpoint.interval == 20 * 1000 * 16
    # Short runs have checkpoints too.
    assert resolve(detent.configure("Hopper-v4", overrides={"steps": 300_000})).checkpoint.interval == 100_000


def test_learning_rate_falls_linearly_over_the_schedule(tmp_path: Path) -> None:
    detent.train(small({"schedule_steps": 4096, "steps": 512}), out=tmp_path / "run")
    rates = [row["learning_rate"] for row in rows(tmp_path / "run", "metrics")]
    expected = [3e-4 * (1 - iteration * 128 / 4096) for iteration in range(len(rates))]
    np.testing.assert_allclose(rates, expected)


def test_config_of_a_run_repeats_it(tmp_path: Path) -> None:
    detent.train(small({"steps": 512}), out=tmp_path / "one")
    detent.train(load_config(tmp_path / "one" / "config.toml"), out=tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    detent.train(small({"steps": 256, "tensorboard": True}), out=tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    logged = [scalar.value for scalar in events.Scalars("metrics/approx_kl")]
    np.testing.assert_allclose(logged, [row["approx_kl"] for row in rows(tmp_path / "run", "metrics")], rtol=1e-6)
    assert events.Scalars("evals/stochastic/return")


def test_scheduled_checkpoints_log_the_share_of_transitions_they_cut_off(tmp_path: Path) -> None:
    # Episodes of 8 steps and rebuilds every 2 iterations of 30 steps: 60 = 7 x 8 + 4, so 4 of 60 steps are cut off.
    detent.train(
        small({"rollout_steps": 30, "update.minibatches": 4, "checkpoint.interval": 240}), out=tmp_path / "run"
    )
    shares = [row.get("cut_share") for row in rows(tmp_path / "run", "metrics")]
    assert shares[:4] == [None, pytest.approx(4 / 60), None, pytest.approx(4 / 60)]
