"""Environments as objects: `detent.train(config, env=factory)`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import detent
from detent.cli import main
from detent.config import EnvConfig
from detent.envs import env_spec, make_envs
from detent.envs.factory import FactorySimulator
from detent.envs.gymnasium import GymnasiumEnvs
from detent.envs.scripted import ScriptedEnv, TargetEnv
from detent.errors import ConfigError

SCRIPTED = "detent.envs.scripted:Scripted-v0"
SMALL = {
    "steps": 512,
    "env.num_envs": 4,
    "rollout_steps": 32,
    "update.minibatches": 4,
    "update.epochs": 1,
    "actor.width": 8,
    "eval.episodes": 2,
    "checkpoint.interval": 128,
    "threads": 1,
}


class Scripted(ScriptedEnv):
    """Its arrays are its own, and its info is of one shape: Gymnasium's vectors need both."""

    def reset(self, **options: Any) -> Any:
        observation, _ = super().reset(**options)
        return observation.copy(), {}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation.copy(), reward, terminated, truncated, {"is_success": info["is_success"]}


def target() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(TargetEnv(), 8)


def vector(num_envs: int, kind: Any = SyncVectorEnv, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Any:
    return kind([target] * num_envs, autoreset_mode=mode)


def rows(run: Path, name: str = "metrics") -> list[dict[str, Any]]:
    """The rows without what depends on the clock."""
    lines = (run / f"{name}.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines]


def train(run: Path, env: Any, **overrides: Any) -> list[dict[str, Any]]:
    config = detent.configure("my-target", overrides={**SMALL, **overrides})
    assert detent.train(config, out=run, env=env).finished
    return rows(run)


IN_PROCESSES = partial(AsyncVectorEnv, context="forkserver")


@pytest.mark.parametrize(
    ("kind", "mode"), [*((SyncVectorEnv, mode) for mode in AutoresetMode), (IN_PROCESSES, AutoresetMode.NEXT_STEP)]
)
def test_a_vector_env_gives_the_stream_of_a_named_task_in_every_autoreset_mode(kind: Any, mode: AutoresetMode) -> None:
    def make(num_envs: int) -> Any:
        return kind([Scripted] * num_envs, autoreset_mode=mode)

    config = EnvConfig(num_envs=3, backend="gymnasium")
    named, made = GymnasiumEnvs(SCRIPTED, 3, config), make_envs("label", EnvConfig(num_envs=3), 3, 1, make)
    try:
        assert made.spec.observation == named.spec.observation
        for seed in (4, 5):
            torch.testing.assert_close(made.reset(seed), named.reset(seed))
            for _ in range(13):
                action = torch.zeros(3, 1)
                ours, theirs = made.step(action), named.step(action)
                torch.testing.assert_close(ours.observation, theirs.observation)
                for name in ("reward", "terminated", "truncated"):
                    torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
                ended = theirs.terminated | theirs.truncated
                assert (ours.final_observation is None) == (theirs.final_observation is None)
                if ours.final_observation is not None and theirs.final_observation is not None:
                    final, expected = ours.final_observation["state"], theirs.final_observation["state"]
                    torch.testing.assert_close(final[ended], expected[ended])
                told = [(e.env, e.total_reward, e.length, e.success, e.success_at_end) for e in ours.episodes]
                assert told == [(e.env, e.total_reward, e.length, e.success, e.success_at_end) for e in theirs.episodes]
    finally:
        made.close()
        named.close()


def test_single_environments_and_vectors_train_to_the_same_numbers_as_the_task_by_name(tmp_path: Path) -> None:
    config = detent.configure(
        "detent.envs.scripted:Target-v0", overrides={**SMALL, "env.backend": "gymnasium", "update.engine": "autograd"}
    )
    detent.train(config, out=tmp_path / "named")
    expected = rows(tmp_path / "named")
    assert train(tmp_path / "single", target, **{"update.engine": "autograd"}) == expected
    assert train(tmp_path / "vector", vector, **{"update.engine": "autograd"}) == expected
    assert rows(tmp_path / "single", "evals") == rows(tmp_path / "named", "evals")


def test_a_run_resumes_exactly_with_the_same_factory(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", target)
    config = detent.configure("my-target", overrides=SMALL)
    detent.train(config, out=tmp_path / "cut", env=target, on_iteration=lambda row, policy: row["step"] >= 300)
    assert len(rows(tmp_path / "cut")) < len(expected)
    assert detent.resume(tmp_path / "cut", env=target, exact=True).finished
    assert rows(tmp_path / "cut") == expected


def test_a_run_needs_its_factory_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", target)
    assert detent.load(tmp_path / "run")(np.zeros(2)).shape == (2,), "a policy needs no environment"
    with pytest.raises(ConfigError, match=r"were made by a Python callable; give it again: env="):
        detent.resume(tmp_path / "run", steps=1024)
    assert main(["eval", str(tmp_path / "run")]) == 2
    assert "made by a Python callable" in capsys.readouterr().err
    report = detent.evaluate_run(tmp_path / "run", "latest", episodes=3, num_envs=2, threads=1, env=target)
    assert report["stochastic"]["episodes"] == 3
    assert report["stochastic"]["length"] == 8


def test_processes_take_a_factory_that_can_be_sent(tmp_path: Path) -> None:
    expected = train(tmp_path / "here", target)
    assert train(tmp_path / "workers", target, **{"env.processes": True}) == expected


class NotAnEnvironment:
    pass


@pytest.mark.parametrize(
    ("factory", "overrides", "sentence"),
    [
        (
            NotAnEnvironment,
            {},
            "returned NotAnEnvironment; it must return a gymnasium.Env or a gymnasium.vector.VectorEnv",
        ),
        (lambda: 1 / 0, {}, "the environment factory failed: ZeroDivisionError"),
        (TargetEnv(), {}, "not TargetEnv itself; for instance env=TargetEnv"),
        (lambda: target(), {"env.processes": True}, "this one cannot be pickled"),
        (partial(vector, 3), {}, "makes 3 environments, and env.num_envs is 4"),
        (vector, {"env.wrappers": ["gymnasium.wrappers:ClipAction"]}, "the factory makes a VectorEnv"),
        (target, {"env.backend": "envpool"}, "env= makes the environments; leave one out"),
        (
            lambda: gymnasium.make("CartPole-v1"),
            {"head.kind": "gaussian", "variant": "rn-c"},
            "the action space is discrete",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_a_sentence(
    factory: Any, overrides: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    config = detent.configure("mine", overrides={**SMALL, **overrides})
    with pytest.raises(ConfigError) as refusal:
        detent.train(config, out=tmp_path / "run", env=factory)
    assert sentence in str(refusal.value)
    assert not (tmp_path / "run").exists()


class NativeVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Points on a line, all in one array: neither of Gymnasium's own vectors; it takes one seed for all."""

    def __init__(self, num_envs: int = 4) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._length = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._length = 0
        self._state = self.np_random.uniform(-1, 1, (self.num_envs, 1)).astype(np.float32)
        return self._state.copy(), {}

    def step(self, actions: Any) -> Any:
        self._length += 1
        self._state = np.clip(self._state + 0.1 * actions, -1, 1).astype(np.float32)
        reward, never = -np.abs(self._state[:, 0]), np.zeros(self.num_envs, bool)
        if self._length < 8:
            return self._state.copy(), reward, never, never, {}
        final = np.array([*self._state, None], dtype=object)[:-1]
        first, _ = self.reset()
        return first, reward, never, ~never, {"final_obs": final, "final_info": {}}


def test_a_vector_env_of_its_own_kind_trains_and_resumes(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", NativeVectorEnv)
    assert whole == train(tmp_path / "again", NativeVectorEnv)
    config = detent.configure("my-target", overrides=SMALL)
    detent.train(config, out=tmp_path / "cut", env=NativeVectorEnv, on_iteration=lambda row, _: row["step"] >= 300)
    detent.resume(tmp_path / "cut", env=NativeVectorEnv, exact=True)
    assert rows(tmp_path / "cut") == whole


class ForgetfulVectorEnv(SyncVectorEnv[Any, Any]):
    """A vector environment that does not say how it resets."""

    def __init__(self) -> None:
        super().__init__([target] * 4)
        self.metadata = {}


def test_a_vector_env_of_unknown_reset_habits_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not declare its autoreset_mode"):
        make_envs("mine", EnvConfig(num_envs=4), 4, 1, ForgetfulVectorEnv)


def test_wrappers_by_import_path_are_put_on_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_wrappers.py").write_text(
        "import gymnasium\n"
        "class Halved(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n        return reward / 2\n"
        "class Shifted(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n        return reward - 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plain = make_envs("Hopper-v4", EnvConfig(backend="gymnasium"), 1, 1)
    config = EnvConfig(wrappers=("my_wrappers:Halved", "my_wrappers:Shifted"))
    both = make_envs("Hopper-v4", config, 1, 1)
    assert type(both).__name__ == "GymnasiumEnvs", "EnvPool cannot be wrapped"
    for envs in (plain, both):
        envs.reset(1)
    action = torch.zeros(1, 3)
    assert both.step(action).reward.item() == pytest.approx(plain.step(action).reward.item() / 2 - 1)
    for envs in (plain, both):
        envs.close()
    for wrapper, sentence in (
        ("my_wrappers:Gone", "the wrapper 'my_wrappers:Gone' cannot be imported"),
        ("builtins:print", "gave NoneType, which is not a Gymnasium environment"),
        ("builtins:int", "the wrapper 'builtins:int' failed"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            env_spec("Hopper-v4", EnvConfig(wrappers=(wrapper,)))


class Fixed(ScriptedEnv):
    """The scripted episodes, each reward multiplied by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward * self.scale, *rest


def scaled_vector(num_envs: int, kind: Any) -> Any:
    return kind([Fixed] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_attributes_of_a_vector_env_are_set_now_and_after_every_rebuild(kind: Any) -> None:
    simulator = FactorySimulator(lambda num_envs: scaled_vector(num_envs, kind))
    envs: Any = simulator.make("mine", EnvConfig(num_envs=2), 2, 1)

    def first_rewards(scale: float) -> list[float]:
        """The first rewards of both environments, without the scale."""
        reward: torch.Tensor = envs.step(torch.zeros(2, 1)).reward / scale
        return reward.tolist()

    envs.reset(0)
    usual = first_rewards(1.0)
    envs.set_attributes({"scale": 3.0})
    second = first_rewards(3.0)
    assert second != usual
    for _ in range(2):
        envs.reset(0)
        assert first_rewards(3.0) == pytest.approx(usual)
        assert first_rewards(3.0) == pytest.approx(second)
    with pytest.raises(RuntimeError, match="have no attribute 'scal' to set"):
        envs.set_attributes({"scal": 1.0})
    envs.close()


def test_attributes_of_a_vector_env_of_its_own_kind_are_its_own() -> None:
    envs: Any = FactorySimulator(NativeVectorEnv).make("mine", EnvConfig(num_envs=3), 3, 1)
    with pytest.raises(RuntimeError, match="NativeVectorEnv has no attribute 'gravity' to set"):
        envs.set_attributes({"gravity": 1.0})
    envs.set_attributes({"render_mode": "ansi"})
    assert envs._envs.unwrapped.render_mode == "ansi"
    envs.close()
