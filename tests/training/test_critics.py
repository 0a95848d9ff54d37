"""Whole runs with every critic: they learn, resume exactly, and treat value clipping as they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import detent
from detent.acceleration.critic_gradients import CRITIC_GRADIENTS, autograd_gradient
from detent.cli import main
from detent.config import Config, CriticConfig
from detent.config.io import load_config
from detent.models import checkpoints
from detent.models.critics.scalar import ScalarCritic
from detent.models.policy import Policy
from detent.training.run import resolve
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"
SMALL: dict[str, Any] = {
    "threads": 1,
    "steps": 1024,
    "rollout_steps": 32,
    "env.num_envs": 4,
    "update.minibatches": 4,
    "update.epochs": 2,
    "actor.width": 16,
    "eval.episodes": 2,
    "eval.deploy": "mode",
    "checkpoint.interval": 256,
    "normalize.warmup_steps": 8,
}
both = pytest.mark.parametrize("head", ["hl-gauss", "two-hot"])


def configured(head: str, algo: str = "ppo", **overrides: Any) -> Config:
    return detent.configure(TARGET, algo=algo, overrides={**SMALL, "critic.head": head, **overrides})


@both
@pytest.mark.parametrize("algo", ["ppo", "spo", "trpo"])
@pytest.mark.parametrize("engine", ["accelerated", "autograd"])
def test_every_algorithm_and_engine_logs_the_saturation(head: str, algo: str, engine: str, tmp_path: Path) -> None:
    narrow = {"critic.head_options": {"low": -0.1, "high": 0.1, "bins": 5}, "steps": 256, "update.engine": engine}
    detent.train(configured(head, algo, **narrow), out=tmp_path / "narrow")
    detent.train(configured(head, algo, **{"steps": 256, "update.engine": engine}), out=tmp_path / "wide")
    narrow_rows, wide_rows = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("narrow", "wide"))
    assert all(0.1 < row["value_saturation"] <= 1 for row in narrow_rows)
    assert all(row["value_saturation"] == 0 for row in wide_rows)


@both
@pytest.mark.parametrize(
    ("algo", "critic"), [("ppo", {}), ("ppo", {"critic.kind": "rn", "critic.width": 32}), ("trpo", {})]
)
def test_a_policy_learns_the_target_task(head: str, algo: str, critic: dict[str, Any], tmp_path: Path) -> None:
    # The task and settings of tests/training/test_trainer.py: random actions earn about -2.5, the best 0.
    settings = {
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
        **({"trpo.max_kl": 0.1} if algo == "trpo" else {}),
    }
    detent.train(configured(head, algo, **settings, **critic), out=tmp_path / "run")
    first, *_, last = read_rows(tmp_path / "run" / "evals.jsonl")
    assert last["stochastic"]["return"] > first["stochastic"]["return"] / 4
    metrics = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert metrics[0]["explained_variance"] == pytest.approx(0, abs=1e-3)
    assert metrics[-1]["value_loss"] < metrics[0]["value_loss"] / 2


@both
@pytest.mark.parametrize(
    ("algo", "processes", "engine"), [("ppo", 2, "auto"), ("ppo", 0, "autograd"), ("trpo", 0, "auto")]
)
def test_a_run_resumes_to_the_bit(head: str, algo: str, processes: int, engine: str, tmp_path: Path) -> None:
    config = configured(head, algo, **{"update.processes": processes, "update.engine": engine})

    def crash_in_iteration_five(row: dict[str, Any], policy: Policy) -> None:
        if row["iteration"] == 5:
            raise ZeroDivisionError

    detent.train(config, out=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash_in_iteration_five)
    assert detent.resume(tmp_path / "cut").finished
    whole, cut = (
        [
            {k: v for k, v in row.items() if not k.startswith("time/")}
            for row in read_rows(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("whole", "cut")
    )
    assert whole == cut
    step = checkpoints.steps(tmp_path / "whole")[-1]
    for name in ("policy", "trainer"):
        one, two = (
            load_file(checkpoints.directory(tmp_path / run, step) / f"{name}.safetensors") for run in ("whole", "cut")
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


class AbsoluteCritic(ScalarCritic):
    """Trained by the absolute error."""

    clips_values = False

    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        return (self.value(outputs) - returns).abs().mean()


class ScaledCritic(AbsoluteCritic):
    """One with a parameter of its own."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(()))

    def value(self, outputs: Tensor) -> Tensor:
        return self.scale * super().value(outputs)


def test_a_plug_in_opts_into_the_accelerated_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute, scaled = configured(f"{__name__}:AbsoluteCritic"), configured(f"{__name__}:ScaledCritic")
    detent.train(absolute, out=tmp_path / "autograd")
    forms: dict[Any, Any] = CRITIC_GRADIENTS
    for plug_in in (AbsoluteCritic, ScaledCritic):
        monkeypatch.setitem(forms, plug_in, autograd_gradient)
    detent.train(absolute, out=tmp_path / "accelerated")
    engines = [load_config(tmp_path / name / "config.toml").update.engine for name in ("autograd", "accelerated")]
    assert engines == ["autograd", "accelerated"]
    plain, fast = (read_rows(tmp_path / name / "metrics.jsonl")[0] for name in ("autograd", "accelerated"))
    assert fast["value_loss"] == pytest.approx(plain["value_loss"], rel=1e-3)
    # The hand-written update does not train such a parameter.
    assert resolve(scaled).update.engine == "autograd"


@both
def test_a_presets_value_clipping_is_off_and_the_run_says_so(
    head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--critic.head", head, "--steps", "128", "--envs", "4", "--rollout-steps", "32", "--width", "8"]
    flags += ["--update.minibatches", "4", "--eval.episodes", "1", "--eval.num-envs", "1", "--eval.deploy", "mode"]
    assert main(["train", TARGET, "--threads", "1", *flags, "--out", str(tmp_path / "run")]) == 0
    assert f"update.value_clip is 0, not 0.2: the critic '{head}' does not clip values" in capsys.readouterr().out
    assert load_config(tmp_path / "run" / "config.toml").update.value_clip == 0
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0


def test_the_scalar_critic_keeps_its_clipping() -> None:
    assert resolve(configured("scalar")).update.value_clip == 0.2


REFUSED = {
    "--update.value-clip 0.2": "update.value_clip is 0.2, and the critic 'hl-gauss' cannot clip its values",
    "--critic.head-options low=2.0 high=-2.0": "the support goes from a finite low to a higher high",
    "--critic.head-options high=inf": "the support goes from a finite low to a higher high",
    "--critic.head-options bins=1": "needs at least 2 bins",
    "--critic.head-options sigma=0": "critic.head_options.sigma is 0.0; it must be positive and finite",
    "--critic.head-options sigma=nan": "critic.head_options.sigma is nan; it must be positive and finite",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_makes_no_sense_is_a_sentence(flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    # No environment is made: there is none of this name.
    assert main(["train", "Nowhere-v0", "--critic.head", "hl-gauss", *flags.split(), "--out", str(out)]) == 2
    assert REFUSED[flags] in capsys.readouterr().err
    assert not out.exists()


def test_typing_no_clipping_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "Nowhere-v0", "--critic.head", "two-hot", "--update.value-clip", "0"]) == 2
    assert "Nowhere-v0" in capsys.readouterr().err
