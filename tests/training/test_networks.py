"""Runs with every built-in network: they learn, resume exactly, and keep weights on the sphere that belong there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import detent
from detent.acceleration.flat_adam import FlatAdam
from detent.acceleration.worker_group import supported
from detent.algorithms.optimizer import AdamOptimizer
from detent.config import Config
from detent.models import checkpoints
from detent.models.networks import TRUNKS
from detent.models.networks.simba_v2 import HypersphericalLinear
from detent.models.policy import Policy
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"
PROCESSES = pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)")
every_network = pytest.mark.parametrize("variant", ["simba-d", "simba-v2-d", "bronet-d"])
every_engine = pytest.mark.parametrize(
    ("algo", "engine", "processes"),
    [
        ("ppo", "autograd", 1),
        ("ppo", "accelerated", 1),
        pytest.param("ppo", "accelerated", 3, marks=PROCESSES),
        ("trpo", "autograd", 1),
        ("trpo", "accelerated", 1),
    ],
)


def small(variant: str, algo: str, overrides: dict[str, Any]) -> Config:
    """A run of a second; the critic has the actor's network."""
    settings = {
        "threads": 1,
        "steps": 1024,
        "rollout_steps": 32,
        "env.num_envs": 4,
        "update.minibatches": 4,
        "update.epochs": 2,
        "actor.width": 8,
        "actor.depth": 1,
        "critic.kind": variant.removesuffix("-d"),
        "critic.width": 8,
        "eval.episodes": 2,
        "eval.interval": 512,
        "checkpoint.interval": 256,
        "normalize.warmup_steps": 8,
    }
    return detent.configure(TARGET, variant=variant, algo=algo, overrides=settings | overrides)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = read_rows(run / "metrics.jsonl")
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


@every_network
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_every_network_learns_the_target_task(algo: str, variant: str, tmp_path: Path) -> None:
    # A uniformly random action earns about -2.5 per episode here; an actor that knows the target approaches 0.
    overrides = {
        "steps": 20_000,
        "schedule_steps": 20_000,
        "rollout_steps": 64,
        "env.num_envs": 8,
        "update.epochs": 10,
        "update.minibatches": 8,
        "update.learning_rate": 1e-3,
        "actor.width": 32,
        "critic.width": 32,
        "eval.episodes": 50,
        "eval.interval": 20_000,
        **({"trpo.max_kl": 0.1} if algo == "trpo" else {}),
    }
    detent.train(small(variant, algo, overrides), out=tmp_path / "run")
    first, *_, last = read_rows(tmp_path / "run" / "evals.jsonl")
    before, after = first["stochastic"]["return"], last["stochastic"]["return"]
    assert after > before / 4, (before, after)


@every_network
@every_engine
def test_every_network_resumes_to_the_bit(variant: str, algo: str, engine: str, processes: int, tmp_path: Path) -> None:
    config = small(variant, algo, {"update.engine": engine, "update.processes": processes})
    detent.train(config, out=tmp_path / "whole")

    def crash_in_iteration_five(row: dict[str, Any], policy: Policy) -> None:
        if row["iteration"] == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash_in_iteration_five)
    assert detent.resume(tmp_path / "cut").finished
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    last = checkpoints.steps(tmp_path / "whole")[-1]
    for name in ("policy", "trainer"):
        whole, cut = (
            load_file(checkpoints.directory(tmp_path / run, last) / f"{name}.safetensors") for run in ("whole", "cut")
        )
        assert whole.keys() == cut.keys()
        assert all(torch.equal(whole[key], cut[key]) for key in whole)


@every_network
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_both_engines_train_every_network_to_the_same_numbers(algo: str, variant: str, tmp_path: Path) -> None:
    """Not to the bit: autograd adds up gradients in another order."""
    found = []
    for engine in ("autograd", "accelerated"):
        config = small(variant, algo, {"update.engine": engine, "steps": 384})
        detent.train(config, out=tmp_path / engine)
        found.append(metrics(tmp_path / engine))
    assert len(found[0]) == len(found[1]) == 3
    for one, other in zip(*found, strict=True):
        for key, value in one.items():
            near = None if value is None else pytest.approx(value, rel=2e-3, abs=2e-4)
            assert other[key] == near, key


def off_sphere(policy: Policy, start: dict[str, Tensor] | None = None) -> float:
    """How far the norm of any weight vector is from 1; if `start` is given, all weights must have moved from there."""
    found = 0.0
    for name, module in policy.named_modules():
        if isinstance(module, HypersphericalLinear):
            found = max(found, (module.weight.detach().norm(dim=1) - 1).abs().max().item())
            assert start is None or not torch.equal(module.weight, start[f"{name}.weight"]), name
    return found


@every_engine
def test_weights_are_on_the_sphere_after_every_step(
    algo: str, engine: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"update.engine": engine, "update.processes": processes, "update.learning_rate": 0.03, "steps": 512}
    config = small("simba-v2-d", algo, overrides)
    policies: list[Policy] = []
    make = Policy.__init__

    def remember(self: Policy, *arguments: Any) -> None:
        make(self, *arguments)
        policies.append(self)

    checked = 0

    def check_after(optimizer: type) -> None:
        step = optimizer.step  # type: ignore[attr-defined]

        def checked_step(self: Any, *arguments: Any) -> Tensor:
            nonlocal checked
            norm: Tensor = step(self, *arguments)
            # In worker processes too, whose exceptions end the run.
            assert off_sphere(policies[-1]) < 1e-6
            checked += 1
            return norm

        monkeypatch.setattr(optimizer, "step", checked_step)

    for optimizer in (AdamOptimizer, FlatAdam):
        check_after(optimizer)
    monkeypatch.setattr(Policy, "__init__", remember)
    starts: list[dict[str, Tensor]] = []

    def on_iteration(row: dict[str, Any], policy: Policy) -> None:
        assert policy is policies[-1]
        starts.append({name: value.clone() for name, value in policy.state_dict().items()})
        assert off_sphere(policy, starts[-2] if len(starts) > 1 else None) < 1e-6

    detent.train(config, out=tmp_path / "run", on_iteration=on_iteration)
    assert checked == len(starts) * 2 * 4
    assert all(row.get("line_search_failed", 0) == 0 for row in metrics(tmp_path / "run"))
    assert off_sphere(detent.load(tmp_path / "run")) < 1e-6


class Clamped(torch.nn.Module):
    """A layer of somebody else whose weights must not be negative."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__()
        self.num_features = config.width
        self.weight = torch.nn.Parameter(torch.rand(config.width, inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.linear(inputs, self.weight).tanh()

    @torch.no_grad()
    def after_step(self) -> None:
        self.weight.clamp_(min=0)


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_a_plug_in_keeps_its_own_constraint(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRUNKS._registered, "clamped", Clamped)
    longer = {"trpo.max_kl": 0.5} if algo == "trpo" else {}
    kinds = {"actor.kind": "clamped", "critic.kind": "clamped"}
    config = small("custom", algo, {**kinds, "update.learning_rate": 0.1, **longer})
    seen: list[Tensor] = []

    def on_iteration(row: dict[str, Any], policy: Policy) -> None:
        seen.extend(policy.state_dict()[f"{network}.0.weight"].clone() for network in ("actor", "critic"))

    detent.train(config, out=tmp_path / "run", on_iteration=on_iteration)
    assert all((weight >= 0).all() for weight in seen)
    for last in seen[-2:]:
        assert (last == 0).any(), "some have been stopped"
