"""Discrete, MultiDiscrete and many-dimensional Box actions, from training to a call of the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import detent
from detent.errors import ConfigError
from detent.training.run_directory import read_rows

SMALL: dict[str, Any] = {
    "steps": 512,
    "rollout_steps": 64,
    "env.num_envs": 4,
    "update.minibatches": 4,
    "actor.width": 16,
    "eval.episodes": 2,
    "eval.num_envs": 2,
    "checkpoint.interval": 256,
    "threads": 1,
}
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([2, 4]),
    "matrix": spaces.Box(-1, 1, (2, 3)),
}


class Matching(gymnasium.Env[Any, Any]):
    """Rewards the action of one of the three spaces that is nearest to a signal; refuses what is not in its space."""

    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, name: str) -> None:
        self.action_space = SPACES[name]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        self._signal = int(self.np_random.integers(2))
        return np.array([self._signal, 1.0], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        self._steps += 1
        # Zeros and ones are in all three spaces.
        reward = -float(np.abs(np.asarray(action, np.float64) - self._signal).mean())
        return self._observe(), reward, False, self._steps >= 16, {}


class Maker:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> Matching:
        return Matching(self.name)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("processes", [False, True])
def test_every_space_trains_and_the_policy_gives_its_actions(name: str, processes: bool, tmp_path: Path) -> None:
    config = detent.configure("mine", overrides={**SMALL, "env.processes": processes, "eval.deploy_episodes": 2})
    run = tmp_path / "run"
    detent.train(config, out=run, env=Maker(name))
    policy, space = detent.load(run), SPACES[name]
    for readout in ("sample", "mode") if name != "matrix" else ("sample", "mode", "mean"):
        single = policy(np.zeros(2, np.float32), readout)
        assert space.contains(single), repr(single)
        many = policy(np.zeros((5, 2), np.float32), readout)
        assert all(space.contains(action) for action in many)
        tensor = policy(torch.zeros(5, 2), readout)
        assert isinstance(tensor, torch.Tensor)
        assert tensor.shape == np.shape(many)
    assert detent.evaluate_run(run, episodes=2, num_envs=2, env=Maker(name))["deterministic"]["episodes"] == 2
    row = read_rows(run / "evals.jsonl")[-1]
    assert (row["mean"] is None) == (name != "matrix")


def test_vector_environments_take_discrete_actions(tmp_path: Path) -> None:
    def make(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        return gymnasium.vector.SyncVectorEnv([Maker("multi")] * num_envs)

    detent.train(detent.configure("mine", overrides=SMALL), out=tmp_path / "run", env=make)
    assert SPACES["multi"].contains(detent.load(tmp_path / "run")(np.zeros(2, np.float32)))


def test_the_expected_action_of_a_discrete_space_is_refused(tmp_path: Path) -> None:
    detent.train(detent.configure("mine", overrides=SMALL), out=tmp_path / "run", env=Maker("discrete"))
    policy = detent.load(tmp_path / "run")
    for ask in (lambda: policy(np.zeros(2), "mean"), lambda: setattr(policy, "readout", "mean")):
        with pytest.raises(ValueError, match=r"the readout 'mean' is for continuous actions"):
            ask()


@pytest.mark.parametrize("setting", ["eval.deploy", "eval.rank_by"])
def test_asking_for_expected_discrete_actions_is_refused_before_training(setting: str, tmp_path: Path) -> None:
    config = detent.configure("mine", overrides={**SMALL, setting: "mean"})
    with pytest.raises(ConfigError, match=f"{setting} is mean, .* discrete"):
        detent.train(config, out=tmp_path / "run", env=Maker("discrete"))
    assert not (tmp_path / "run").exists()


def test_a_discrete_run_resumes_to_the_bit(tmp_path: Path) -> None:
    config = detent.configure("mine", overrides={**SMALL, "steps": 1280})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    detent.train(config, out=whole, env=Maker("multi"))

    detent.train(config, out=parts, env=Maker("multi"), on_iteration=lambda row, _: row["iteration"] == 1)
    detent.resume(parts, env=Maker("multi"), exact=True)
    weights = [detent.load(path, "latest").state_dict() for path in (whole, parts)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_cartpole_learns(tmp_path: Path) -> None:
    config = detent.configure(
        "CartPole-v1",
        preset="fast",
        variant="mlp-d",
        overrides={"steps": 20_000, "threads": 1, "env.num_envs": 8, "eval.interval": 20_000, "update.epochs": 10},
    )
    detent.train(config, out=tmp_path / "run")
    first, *_, last = [row["return"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["return"]]
    assert first < 30
    assert last > 100
