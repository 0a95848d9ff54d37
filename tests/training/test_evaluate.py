from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

import detent
from detent.config import READOUTS, ActorConfig, Config, EnvConfig, HeadConfig, Readout
from detent.envs import Episode, Step, VectorEnv, make_envs
from detent.models.policy import Policy
from detent.rollouts.rollout import NonFiniteError
from detent.seeding import derive_seed
from detent.spec import ActionSpec, EnvSpec, Observation, ObservationSpec
from detent.training.evaluate import Evaluation, bootstrap_interval, evaluate, ranking
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"


class Clocks:
    """Environment i plays episodes of `lengths[i]` steps and earns 1 in each step; episode k of it reports `k`."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.num_envs = lengths, len(lengths)
        self.spec = EnvSpec(ObservationSpec(1), ActionSpec((-1.0,), (1.0,)))
        self.steps = 0

    def reset(self, seed: int) -> Observation:
        self.steps = 0
        return {"state": torch.zeros(self.num_envs, 1)}

    def step(self, action: Tensor) -> Step:
        self.steps += 1
        ended = [self.steps % length == 0 for length in self.lengths]
        zeros = {"state": torch.zeros(self.num_envs, 1)}
        return Step(
            observation=zeros,
            reward=torch.ones(self.num_envs),
            terminated=torch.tensor(ended),
            truncated=torch.zeros(self.num_envs, dtype=torch.bool),
            final_observation=zeros if any(ended) else None,
            episodes=tuple(
                Episode(i, float(length), length, info={"k": self.steps / length - 1})
                for i, length in enumerate(self.lengths)
                if ended[i]
            ),
        )

    def close(self) -> None:
        pass


def make_policy(envs: VectorEnv) -> Policy:
    """A policy that is far from uniform and has seen observations."""
    config = Config(actor=ActorConfig(width=16, depth=1), head=HeadConfig(bins=11))
    policy = Policy(envs.spec, config)
    layer = policy.actor[1]
    assert isinstance(layer, nn.Linear)
    layer.weight.data *= 100
    policy.update_statistics({"state": torch.randn(50, envs.spec.observation.size)})
    return policy


@pytest.mark.parametrize(("episodes", "shares"), [(6, [2, 2, 2]), (7, [3, 2, 2]), (8, [3, 3, 2]), (2, [1, 1, 0])])
def test_every_environment_plays_its_share_however_long_it_takes(episodes: int, shares: list[int]) -> None:
    # The first 8 episodes to finish would be 7 of environment 0 and 1 of environment 1.
    envs = Clocks([1, 7, 20])
    played = evaluate(make_policy(envs), envs, episodes, seed=0, readout="mode")
    expected = [(env, envs.lengths[env], turn) for env, share in enumerate(shares) for turn in range(share)]
    assert [(episode.env, episode.length, episode.info["k"]) for episode in played.episodes] == expected


def test_evaluation_stops_when_the_slowest_environment_is_done() -> None:
    envs = Clocks([1, 7, 20])
    evaluate(make_policy(envs), envs, 6, seed=0, readout="mode")
    assert envs.steps == 40


@pytest.mark.parametrize("readout", READOUTS)
def test_the_same_seed_gives_the_same_episodes(readout: Readout) -> None:
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = make_policy(envs)
    first = evaluate(policy, envs, 5, 1, readout)
    torch.manual_seed(0)
    assert evaluate(policy, envs, 5, 1, readout) == first
    assert evaluate(policy, envs, 5, 2, readout) != first
    assert len(first.episodes) == 5
    envs.close()


def test_deterministic_and_sampled_play_differ_on_the_same_environments() -> None:
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = make_policy(envs)
    assert evaluate(policy, envs, 3, 1, "mode") != evaluate(policy, envs, 3, 1, "sample")
    envs.close()


def test_deterministic_play_is_the_policy_called_on_each_observation() -> None:
    envs = make_envs(TARGET, EnvConfig(), 2, 1)
    policy = make_policy(envs)
    played = evaluate(policy, envs, 2, 1, readout="mode")

    state, totals = envs.reset(derive_seed(1, "eval-envs"))["state"], torch.zeros(2)
    for _ in range(8):
        step = envs.step(torch.from_numpy(policy(state.numpy())))
        totals += step.reward
        state = step.observation["state"]
    envs.close()
    np.testing.assert_allclose([episode.total_reward for episode in played.episodes], totals, rtol=1e-5)


@pytest.mark.parametrize("readout", READOUTS)
def test_evaluation_changes_nothing_of_the_policy_or_the_global_generator(readout: Readout) -> None:
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = make_policy(envs)
    before = copy.deepcopy(dict(policy.named_buffers()) | policy.state_dict())
    random_state = torch.get_rng_state()
    evaluate(policy, envs, 5, 1, readout)
    after = dict(policy.named_buffers()) | policy.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in after.items())
    assert torch.equal(torch.get_rng_state(), random_state)
    envs.close()


@pytest.mark.parametrize("law", ["normal", "exponential"])
def test_bootstrap_interval_is_that_of_scipy(law: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1000, 200, 30) if law == "normal" else rng.exponential(500, 30)
    found = bootstrap_interval(values)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=0.95, method="percentile", n_resamples=10_000, rng=np.random.default_rng(1)
    ).confidence_interval
    # Both are random: 10 000 resamples give a 2.5% quantile to 0.03 standard errors of the mean.
    standard_error = values.std(ddof=1) / np.sqrt(30)
    np.testing.assert_allclose(found, theirs, atol=0.15 * standard_error)
    assert found == bootstrap_interval(values)
    assert found[0] < values.mean() < found[1]
    # 1.96 standard errors on each side, somewhat less because the resamples' variance has no correction.
    assert (found[1] - found[0]) / (2 * 1.96 * standard_error) == pytest.approx(np.sqrt(29 / 30), abs=0.05)


def test_bootstrap_interval_of_equal_or_single_values_is_a_point() -> None:
    assert bootstrap_interval(np.full(10, 3.0)) == (3.0, 3.0)
    assert bootstrap_interval(np.array([7.0])) == (7.0, 7.0)


def test_summary_is_the_one_computed_by_hand() -> None:
    episodes = (
        Episode(0, 1000.0, 500, success=1.0, success_at_end=1.0),
        Episode(0, 2000.0, 700, success=0.0, success_at_end=0.0),
        Episode(1, 3000.0, 900, success=1.0, success_at_end=0.0),
    )
    summary = Evaluation(episodes, 0.25).summary("Hopper-v4")
    assert summary["return"] == 2000.0
    # Squared deviations 1e6, 0, 1e6, divided by 2.
    assert summary["std"] == pytest.approx(1000.0)
    assert summary["length"] == 700.0
    assert summary["episodes"] == 3
    assert summary["action_change"] == 0.25
    assert summary["success_once"] == pytest.approx(2 / 3)
    assert summary["success_at_end"] == pytest.approx(1 / 3)
    # Random 18.791, TD3 3226: (2000 - 18.791) / (3226 - 18.791).
    assert summary["score"] == pytest.approx(0.61774, abs=1e-5)
    # The lowest mean of three draws has probability 1/27 > 2.5%, and so has the highest.
    assert summary["ci95"] == [1000.0, 3000.0]


def test_summary_of_one_episode_of_an_unknown_task_has_no_spread_and_no_score() -> None:
    summary = Evaluation((Episode(0, 5.0, 10),), 0.0).summary(TARGET)
    assert (summary["return"], summary["std"], summary["ci95"], summary["score"]) == (5.0, 0.0, [5.0, 5.0], None)
    assert "success_once" not in summary
    assert "success_at_end" not in summary


class Centre(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Ends when the action leaves the middle of its range; has no time limit."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, abs(float(action[0])) > 0.2, False, {}


def test_expected_actions_that_never_end_an_episode_cost_a_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.training.evaluate.NO_END_IN_SIGHT", 200)
    few: dict[str, Any] = {
        "steps": 144,
        "rollout_steps": 16,
        "env.num_envs": 4,
        "threads": 1,
        "actor.width": 8,
        "eval.episodes": 2,
    }
    few |= {
        "eval.interval": 1000,
        "update.minibatches": 2,
        "normalize.warmup_steps": 4,
        "update.learning_rate": 1e-30,
        "head.bins": 2,
    }
    config = detent.configure("centre", overrides=few)
    with pytest.warns(UserWarning, match="the expected actions could not be evaluated: an episode did not end"):
        assert detent.train(config, out=tmp_path / "run", env=Centre).finished
    assert [row["mean"] for row in read_rows(tmp_path / "run" / "evals.jsonl")] == [None, None]
    assert detent.load(tmp_path / "run").readout == "mode"
    ranked = detent.configure("centre", overrides={**few, "eval.rank_by": "mean"})
    with pytest.raises(RuntimeError, match="did not end"):
        detent.train(ranked, out=tmp_path / "ranked", env=Centre)


class Poisoned(Centre):
    """Ends after one step, and observes NaN from then on."""

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return np.full(1, np.nan, np.float32), 1.0, False, False, {}


def test_nan_in_an_evaluation_is_said_to_be_there() -> None:
    envs = make_envs("poisoned", EnvConfig(backend="factory"), 2, 1, Poisoned)
    with pytest.raises(NonFiniteError, match=r"in an evaluation, the observation 'state' is not finite: entry \[0"):
        evaluate(make_policy(envs), envs, 2, 0, "mode")
    envs.close()


@pytest.mark.parametrize("total", [float("-inf"), float("nan")])
def test_a_return_that_is_not_finite_ranks_last(total: float) -> None:
    assert ranking({"return": total}) == (0.0, float("-inf"))
    assert ranking({"return": total, "success_once": 0.5}) < ranking({"return": -1e9, "success_once": 0.5})
