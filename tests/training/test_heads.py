"""Runs with every built-in head: they learn under every update rule, and resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import detent
from detent.config import Config
from detent.models import checkpoints
from detent.models.heads import HEADS
from detent.models.policy import Policy
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"
VARIANTS = {
    "rn-d": "categorical",
    "bang-bang": "categorical",
    "bang-off-bang": "categorical",
    "rn-ordinal": "ordinal",
    "rn-unimodal": "unimodal",
    "rn-smooth": "smooth",
    "rn-coarse-fine": "coarse-fine",
    "rn-c": "gaussian",
    "rn-squashed": "squashed-gaussian",
    "rn-beta": "beta",
    "loss-swap": "loss-swap",
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_algorithm = pytest.mark.parametrize("algo", ["ppo", "spo", "trpo"])


def small(variant: str, algo: str, **overrides: Any) -> Config:
    """A run of a second; eleven bins where the variant does not say how many."""
    settings = {
        "threads": 1,
        "steps": 768,
        "rollout_steps": 32,
        "env.num_envs": 4,
        "update.minibatches": 4,
        "update.epochs": 2,
        "actor.width": 8,
        "actor.depth": 1,
        "critic.width": 8,
        "eval.episodes": 2,
        "eval.interval": 512,
        "checkpoint.interval": 256,
        "normalize.warmup_steps": 8,
    }
    over_bins = VARIANTS[variant] in ("categorical", "ordinal", "unimodal", "smooth", "coarse-fine", "loss-swap")
    if over_bins and not variant.startswith("bang"):
        settings["head.bins"] = 11
    return detent.configure(TARGET, variant=variant, algo=algo, overrides=settings | overrides)


def test_every_built_in_head_is_trained_here() -> None:
    assert set(VARIANTS.values()) == {name for name in HEADS.names() if HEADS.is_builtin(name)}


BEST = {"bang-bang": -1.65, "bang-off-bang": -0.40}
"""The best return with these bins, by the integral of the squared distance from a target to the nearest bin; else 0."""


@every_variant
@every_algorithm
def test_every_head_learns_the_target_task(algo: str, variant: str, tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "steps": 8192,
        "schedule_steps": 8192,
        "rollout_steps": 64,
        "env.num_envs": 8,
        "update.epochs": 6,
        "update.minibatches": 8,
        "update.learning_rate": 3e-3,
        **{"ppo": {}, "spo": {"spo.epsilon": 0.5}, "trpo": {"trpo.max_kl": 0.1}}[algo],
        "actor.width": 32,
        "critic.width": 32,
        "eval.episodes": 20,
        "eval.interval": 8192,
        "checkpoint.interval": 8192,
    }
    if variant in ("rn-c", "loss-swap"):
        overrides["head.log_std_init"] = -0.5
    if variant == "rn-c":
        # The mean starts in the middle of each range; at 0, it is on the edge of one and beyond that of the other.
        overrides["head.mean"] = "squashed"
    detent.train(small(variant, algo, **overrides), out=tmp_path / "run")
    first, *_, last = read_rows(tmp_path / "run" / "evals.jsonl")
    before, after = first["stochastic"]["return"], last["stochastic"]["return"]
    # Most of the way from the fresh network's return to the best one; without learning it is none of it.
    assert after - before > 0.65 * (BEST.get(variant, 0.0) - before), (before, after)


@every_variant
@pytest.mark.parametrize(("algo", "engine"), [("ppo", "accelerated"), ("spo", "autograd"), ("trpo", "auto")])
def test_every_head_resumes_to_the_bit(variant: str, algo: str, engine: str, tmp_path: Path) -> None:
    config = small(variant, algo, **{"update.engine": engine})

    def crash_in_iteration_five(row: dict[str, Any], policy: Policy) -> None:
        if row["iteration"] == 5:
            raise ZeroDivisionError

    detent.train(config, out=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash_in_iteration_five)
    assert detent.resume(tmp_path / "cut").finished
    whole, cut = (
        [
            {key: value for key, value in row.items() if not key.startswith("time/")}
            for row in read_rows(tmp_path / run / "metrics.jsonl")
        ]
        for run in ("whole", "cut")
    )
    assert len(whole) == 6
    assert whole == cut
    step = checkpoints.steps(tmp_path / "whole")[-1]
    for name in ("policy", "trainer"):
        one, two = (
            load_file(checkpoints.directory(tmp_path / run, step) / f"{name}.safetensors") for run in ("whole", "cut")
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
