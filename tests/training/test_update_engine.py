"""The two engines of an update: which one a run gets, and that they come to the same."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.cli import main
from detent.config import Config
from detent.envs import env_spec, make_envs
from detent.envs.scripted import TargetEnv
from detent.errors import ConfigError
from detent.models.networks import TRUNKS
from detent.models.networks.trunks import MLP
from detent.models.policy import Policy
from detent.training.engine import choose_engine, make_collector, make_update_rule
from detent.training.run import resolve

TARGET = "detent.envs.scripted:Target-v0"
SMALL: dict[str, Any] = {
    "steps": 640,
    "env.num_envs": 4,
    "rollout_steps": 32,
    "update.minibatches": 4,
    "update.epochs": 3,
    "actor.width": 16,
    "eval.episodes": 2,
    "threads": 1,
    "env.backend": "gymnasium",
}


def rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines]


def configured(variant: str = "rn-d", algo: str = "ppo", **overrides: Any) -> Config:
    return detent.configure(TARGET, variant=variant, algo=algo, overrides={**SMALL, **overrides})


def train(run: Path, *arguments: str, **overrides: Any) -> list[dict[str, Any]]:
    detent.train(configured(*arguments, **overrides), out=run)
    return rows(run)


@pytest.mark.parametrize("algo", ["ppo", "spo", "trpo"])
@pytest.mark.parametrize("variant", ["rn-d", "mlp-c", "loss-swap"])
def test_both_engines_train_to_the_same_numbers(algo: str, variant: str, tmp_path: Path) -> None:
    """Not to the bit: autograd adds up gradients in another order."""
    # Damping keeps TRPO's linear system well-conditioned: conjugate gradients amplify the difference otherwise.
    overrides = {"trpo.damping": 0.1, "trpo.max_kl": 0.01} if algo == "trpo" else {"update.entropy_coef": 0.01}
    accelerated = train(tmp_path / "a", variant, algo, **overrides, **{"update.engine": "accelerated"})
    autograd = train(tmp_path / "b", variant, algo, **overrides, **{"update.engine": "autograd"})
    assert len(accelerated) == len(autograd) == 3
    for ours, theirs in zip(autograd, accelerated, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            # What is itself a small difference of large numbers, such as a KL or a signal-to-noise ratio, moves more.
            relative = 1e-2 if key == "step_fraction" else 2e-3
            near = None if value is None else pytest.approx(value, rel=relative, abs=2e-4)
            assert ours[key] == near, key


def test_an_accelerated_run_is_the_default_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"train {TARGET} --steps 128 --env.num-envs 4 --rollout-steps 32 --update.minibatches 4 --eval.episodes 1"
    assert main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    assert "accelerated engine" in capsys.readouterr().out.splitlines()[0]
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["update"]["engine"] == "accelerated"


class Doubled(MLP):
    """A subclass that computes something else."""

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self:
            inputs = layer(inputs)
        return 2 * inputs


class Hooked(MLP):
    """An MLP with a hook that changes what it computes."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__(inputs, config)
        self[0].register_forward_hook(lambda module, arguments, outputs: 2 * outputs)


class Frozen(MLP):
    """An MLP whose first layer is not trained, as under LoRA."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__(inputs, config)
        self[0].requires_grad_(False)


@pytest.fixture(params=[Doubled, Hooked, Frozen])
def trunk(request: pytest.FixtureRequest) -> Any:
    TRUNKS.register("odd")(request.param)
    yield request.param
    del TRUNKS._registered["odd"]


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_subclasses_hooks_and_frozen_layers_force_autograd_and_count(trunk: Any, algo: str, tmp_path: Path) -> None:
    config = configured("custom", algo, **{"actor.kind": "odd"})
    with pytest.raises(ConfigError, match=r"update.engine is accelerated, but the actor's .* has no accelerated form"):
        resolve(configured("custom", algo, **{"actor.kind": "odd", "update.engine": "accelerated"}))
    start = Policy(env_spec(TARGET, config.env), config).state_dict()
    seen: list[dict[str, Tensor]] = []
    detent.train(
        config,
        out=tmp_path / "run",
        on_iteration=lambda row, policy: seen.append({k: v.clone() for k, v in policy.state_dict().items()}),
    )
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["update"]["engine"] == "autograd"
    frozen = trunk is Frozen
    assert torch.equal(seen[-1]["actor.0.0.weight"], start["actor.0.0.weight"]) == frozen
    assert not torch.equal(seen[-1]["actor.0.2.weight"], start["actor.0.2.weight"])


def test_what_acts_is_what_is_updated_with_a_hook(tmp_path: Path) -> None:
    """The ratio before the first step is 1: acting and updating go through the same hook."""
    TRUNKS.register("odd")(Hooked)
    try:
        found = train(tmp_path / "run", "custom", **{"actor.kind": "odd", "update.minibatches": 1, "update.epochs": 1})
    finally:
        del TRUNKS._registered["odd"]
    assert found[0]["approx_kl"] < 1e-9
    assert found[0]["clip_fraction"] == 0


@pytest.mark.parametrize("change", ["hook", "forward"])
def test_a_module_changed_during_an_accelerated_run_stops_it(change: str, tmp_path: Path) -> None:
    def on_iteration(row: dict[str, Any], policy: Policy) -> None:
        if change == "hook":
            policy.actor[1].register_forward_hook(lambda module, arguments, outputs: 2 * outputs)
        else:
            forward = policy.actor[1].forward
            policy.actor[1].forward = lambda inputs: 2 * forward(inputs)

    with pytest.raises(RuntimeError, match=r"replaced or hooked during the run.*--update.engine autograd"):
        detent.train(configured(), out=tmp_path / "run", on_iteration=on_iteration)


@pytest.mark.parametrize("engine", ["autograd", "accelerated"])
@pytest.mark.parametrize("change", ["replacement", "freezing"])
def test_parameters_that_the_optimizer_does_not_know_stop_a_run(change: str, engine: str, tmp_path: Path) -> None:
    """They would be left as they are, or a frozen one moved, without a word."""

    def on_iteration(row: dict[str, Any], policy: Policy) -> None:
        if change == "freezing":
            policy.actor[1].requires_grad_(False)
        else:
            policy.actor[1] = nn.Linear(16, policy.head.num_outputs)

    with pytest.raises(RuntimeError, match="replaced, frozen or added during the run"):
        detent.train(configured(**{"update.engine": engine}), out=tmp_path / "run", on_iteration=on_iteration)


class Dropping(MLP):
    """An MLP with dropout, which draws from torch's global numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self:
            inputs = layer(inputs)
        return nn.functional.dropout(inputs, 0.5, self.training)


def test_dropout_is_repeated_resumed_to_the_bit_and_off_while_acting(tmp_path: Path) -> None:
    TRUNKS.register("odd")(Dropping)
    try:
        overrides: dict[str, Any] = {"actor.kind": "odd", "steps": 900, "checkpoint.interval": 128}
        before = torch.get_rng_state()
        whole = train(tmp_path / "whole", "custom", **overrides)
        assert torch.equal(torch.get_rng_state(), before), "the program's own numbers are left alone"
        config = configured("custom", **overrides)
        detent.train(config, out=tmp_path / "cut", on_iteration=lambda row, policy: row["step"] >= 500)
        detent.resume(tmp_path / "cut", exact=True)
        assert rows(tmp_path / "cut") == whole
        policy = detent.load(tmp_path / "cut")
        assert not policy.training
    finally:
        del TRUNKS._registered["odd"]


class Tied(MLP):
    """Two layers with one weight."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__(inputs, config)
        self.append(nn.Linear(16, 16))
        self[-1].weight = self[2].weight


def test_tied_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    TRUNKS.register("odd")(Tied)
    try:
        train(tmp_path / "run", "custom", **{"actor.kind": "odd"})
        trunk: Any = detent.load(tmp_path / "run").actor[0]
        assert trunk[-1].weight is trunk[2].weight
    finally:
        del TRUNKS._registered["odd"]


def test_compiling_is_refused_where_auto_ends_with_autograd() -> None:
    TRUNKS.register("odd")(Doubled)
    try:
        with pytest.raises(ConfigError, match=r"update\.engine is autograd"):
            resolve(configured("custom", "ppo", **{"actor.kind": "odd", "update.compile": True}))
    finally:
        del TRUNKS._registered["odd"]


def test_a_run_is_resumed_with_its_engine_or_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", **{"update.engine": "autograd"})
    detent.resume(tmp_path / "run", steps=1280)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["update"]["engine"] == "autograd"
    text = (tmp_path / "run" / "config.toml").read_text().replace('engine = "autograd"', 'engine = "accelerated"')
    TRUNKS.register("odd")(Doubled)
    try:
        (tmp_path / "run" / "config.toml").write_text(text.replace('kind = "rn"', 'kind = "odd"'))
        with pytest.raises(ConfigError, match=r"update.engine is accelerated, but the actor's Doubled"):
            detent.resume(tmp_path / "run", steps=2560)
    finally:
        del TRUNKS._registered["odd"]


def test_the_autograd_engine_resumes_to_the_bit(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"update.engine": "autograd", "checkpoint.interval": 128, "steps": 900}
    whole = train(tmp_path / "whole", **overrides)
    config = configured(**overrides)
    detent.train(config, out=tmp_path / "cut", on_iteration=lambda row, policy: row["step"] >= 500)
    detent.resume(tmp_path / "cut", exact=True)
    assert rows(tmp_path / "cut") == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="rollout processes are forked")
def test_rollout_processes_refuse_to_start_before_the_parameters_are_shared() -> None:
    """Built first, the collector would fork processes that never see an update."""
    config = detent.configure(
        "Hopper-v4",
        overrides={**SMALL, "env.backend": "envpool", "update.processes": 2, "update.engine": "accelerated"},
    )
    policy = Policy(env_spec(config.task, config.env), config)
    collector = make_collector(policy, make_envs(config.task, config.env, 4, 2), config)
    try:
        with pytest.raises(RuntimeError, match="not in shared memory"):
            collector.collect(0, fresh=True)
    finally:
        collector.close()

    policy = Policy(env_spec(config.task, config.env), config)
    collector = make_collector(policy, make_envs(config.task, config.env, 4, 2), config)
    first = make_update_rule(policy, config)
    try:
        collector.collect(0, fresh=True)
        second = make_update_rule(policy, config)
        with pytest.raises(RuntimeError, match="moved after the rollout processes had started"):
            collector.collect(1, fresh=False)
        second.close()
    finally:
        collector.close()
        first.close()


def test_environments_are_closed_when_the_run_directory_is_refused(tmp_path: Path) -> None:
    closed: list[bool] = []

    class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(True)
            super().close()

    made: list[Watched] = []

    def factory() -> Watched:
        made.append(Watched(gymnasium.wrappers.TimeLimit(TargetEnv(), 8)))
        return made[-1]

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").write_text("here")
    with pytest.raises(ConfigError, match="exists already"):
        detent.train(configured(**{"env.backend": "auto"}), out=tmp_path / "run", env=factory)
    assert len(closed) == len(made)


def test_a_baseline_has_no_engine() -> None:
    config = detent.configure(TARGET, variant="td3", algo="td3", overrides={"steps": 2000})
    assert choose_engine(config, env_spec(TARGET, config.env)) == "auto"
