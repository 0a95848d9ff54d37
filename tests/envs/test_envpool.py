from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("envpool")

from detent.config import EnvConfig
from detent.envs import VectorEnv, choose_backend, env_spec, make_envs
from detent.envs.envpool import TASKS, EnvPoolEnvs, first_core
from detent.envs.gymnasium import GymnasiumEnvs, find_task
from detent.errors import ConfigError

# In Gymnasium these have no argument that takes the noise out of their first state.
NOISY = {"HumanoidStandup-v4", "InvertedDoublePendulum-v4", "InvertedPendulum-v4", "Reacher-v4", "Reacher-v5"}


@pytest.fixture(autouse=True)
def _mujoco_logs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # MuJoCo 4 writes its complaint about Gymnasium's HalfCheetah model to MUJOCO_LOG.TXT where it is run.
    monkeypatch.chdir(tmp_path)


def actions(envs: VectorEnv, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    low, high = torch.tensor(envs.spec.action.low), torch.tensor(envs.spec.action.high)
    uniform = torch.rand(envs.num_envs, envs.spec.action.size, generator=generator)
    return scale * (low + (high - low) * uniform)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_spaces_and_time_limit_equal_gymnasiums(task: str) -> None:
    config = EnvConfig()
    assert choose_backend(task, config) == "envpool"
    ours, theirs = env_spec(task, config), env_spec(task, EnvConfig(backend="gymnasium"))
    assert ours.observation == theirs.observation
    assert ours.max_episode_steps == theirs.max_episode_steps
    # Gymnasium's bounds are float32 numbers, EnvPool's float64.
    for bound, their_bound in ((ours.action.low, theirs.action.low), (ours.action.high, theirs.action.high)):
        np.testing.assert_array_equal(np.asarray(bound, np.float32), np.asarray(their_bound, np.float32))


@pytest.mark.parametrize("task", sorted(TASKS - NOISY))
def test_the_same_start_and_actions_give_gymnasiums_trajectory(task: str) -> None:
    # Without noise every episode starts from the same state. Humanoid touches the ground in step 13, so contact forces
    # are compared too. The two libraries contain different MuJoCo releases: rounding errors grow at contacts.
    config = EnvConfig(kwargs={"reset_noise_scale": 0.0})
    ours, theirs = EnvPoolEnvs(task, 1, config), GymnasiumEnvs(task, 1, config)
    np.testing.assert_allclose(ours.reset(0)["state"], theirs.reset(0)["state"], atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(14):
        action = actions(ours, generator, scale=0.5)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(a.observation["state"], b.observation["state"], rtol=0.02, atol=0.02)
        np.testing.assert_allclose(a.reward, b.reward, atol=0.01)
        assert torch.equal(a.terminated, b.terminated)
        if a.episodes:
            break
        largest = max(largest, float(a.observation["state"].abs().max()))
    if task == "Humanoid-v4":
        assert largest > 50, "no contact force was seen"


def test_parts_are_the_environments_of_the_whole() -> None:
    whole = EnvPoolEnvs("Hopper-v4", 5, EnvConfig(), 2)
    parts = [whole.part(slice(0, 2), 1), whole.part(slice(2, 5), 2)]
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(whole.reset(3)["state"], torch.cat([part.reset(3)["state"] for part in parts]))
    ended: set[int] = set()
    for _ in range(60):
        action = actions(whole, generator)
        step, steps = (
            whole.step(action),
            [part.step(rows) for part, rows in zip(parts, action.split([2, 3]), strict=True)],
        )
        assert torch.equal(step.observation["state"], torch.cat([each.observation["state"] for each in steps]))
        assert torch.equal(step.reward, torch.cat([each.reward for each in steps]))
        assert list(step.episodes) == [episode for each in steps for episode in each.episodes]
        ended |= {episode.env for episode in step.episodes}
    assert ended == set(range(5))
    for envs in (whole, *parts):
        envs.close()


@pytest.mark.parametrize("task", sorted(NOISY))
def test_tasks_with_a_noisy_start_can_be_stepped(task: str) -> None:
    envs = EnvPoolEnvs(task, 2, EnvConfig())
    envs.reset(0)
    step = envs.step(actions(envs, torch.Generator().manual_seed(0)))
    assert torch.isfinite(step.observation["state"]).all()


def returns_of_a_linear_policy(envs: VectorEnv, episodes: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns of the first `episodes / num_envs` episodes of every environment, so that short ones count no more."""
    quota = episodes // envs.num_envs
    generator = torch.Generator().manual_seed(1)
    weights = 0.2 * torch.randn(envs.spec.observation.size, envs.spec.action.size, generator=generator)
    high = torch.tensor(envs.spec.action.high)
    found: list[list[float]] = [[] for _ in range(envs.num_envs)]
    observation = envs.reset(0)["state"]
    while min(map(len, found)) < quota:
        noise = 0.5 * torch.randn(envs.num_envs, envs.spec.action.size, generator=generator)
        step = envs.step(high * torch.tanh(observation @ weights + noise))
        observation = step.observation["state"]
        for episode in step.episodes:
            found[episode.env].append(episode.total_reward)
    envs.close()
    return np.array([total for row in found for total in row[:quota]])


@pytest.mark.parametrize("task", ["Hopper-v4", "Walker2d-v4"])
def test_a_policy_earns_in_envpool_what_it_earns_in_gymnasium(task: str) -> None:
    ours = returns_of_a_linear_policy(EnvPoolEnvs(task, 16, EnvConfig()), 160)
    theirs = returns_of_a_linear_policy(GymnasiumEnvs(task, 16, EnvConfig()), 160)
    standard_error = math.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 3 * standard_error
    assert 0.7 < ours.std() / theirs.std() < 1.4


def test_an_unbroken_episode_is_truncated_after_1000_steps() -> None:
    envs = EnvPoolEnvs("HalfCheetah-v4", 2, EnvConfig(), num_threads=1)
    envs.reset(0)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 1001):
        step = envs.step(actions(envs, generator))
        assert step.truncated.tolist() == [t == 1000] * 2
        assert not step.terminated.any()
    assert [(e.env, e.length) for e in step.episodes] == [(0, 1000), (1, 1000)]
    assert step.final_observation is not None
    assert (step.final_observation["state"] != step.observation["state"]).any(dim=1).all()
    step = envs.step(actions(envs, generator))
    assert not step.truncated.any()


def test_a_fall_in_the_last_step_is_both_termination_and_truncation() -> None:
    def first_end(limit: int) -> tuple[int, bool, bool]:
        envs = EnvPoolEnvs("Hopper-v4", 1, EnvConfig(kwargs={"max_episode_steps": limit}))
        envs.reset(0)
        assert envs.spec.max_episode_steps == limit
        generator = torch.Generator().manual_seed(0)
        while not (step := envs.step(actions(envs, generator))).episodes:
            pass
        return step.episodes[0].length, bool(step.terminated), bool(step.truncated)

    length, terminated, truncated = first_end(1000)
    assert (terminated, truncated) == (True, False)
    assert first_end(length) == (length, True, True)
    assert first_end(length - 1) == (length - 1, False, True)


def test_rows_belong_to_their_environments_and_no_transition_is_a_dummy() -> None:
    # Hopper-v4's observation begins with height and angle: it starts near (1.25, 0) and falls below 0.7 or beyond 0.2.
    envs = EnvPoolEnvs("Hopper-v4", 8, EnvConfig(), num_threads=2)
    envs.reset(0)
    generator = torch.Generator().manual_seed(0)
    totals, lengths, ended = torch.zeros(8, dtype=torch.float64), [0] * 8, 0
    for _ in range(200):
        step = envs.step(actions(envs, generator))
        totals += step.reward
        lengths = [n + 1 for n in lengths]
        assert [e.env for e in step.episodes] == (step.terminated | step.truncated).nonzero().flatten().tolist()
        for episode in step.episodes:
            i = episode.env
            assert episode.length == lengths[i]
            assert episode.total_reward == pytest.approx(totals[i].item())
            assert abs(float(step.observation["state"][i, 0]) - 1.25) < 0.01
            assert step.final_observation is not None
            height, angle = step.final_observation["state"][i, :2].tolist()
            assert height <= 0.7 or abs(angle) >= 0.2
            assert "x_velocity" in episode.info
            totals[i], lengths[i], ended = 0.0, 0, ended + 1
    assert ended > 30


def test_same_seed_gives_same_bits_whatever_the_threads_and_another_seed_others() -> None:
    def play(envs: EnvPoolEnvs, seed: int) -> torch.Tensor:
        seen = [envs.reset(seed)["state"]]
        generator = torch.Generator().manual_seed(0)
        seen += [envs.step(actions(envs, generator)).observation["state"] for _ in range(60)]
        return torch.stack(seen)

    envs = EnvPoolEnvs("Hopper-v4", 4, EnvConfig(), num_threads=2)
    once = play(envs, 5)
    assert torch.equal(once, play(envs, 5))
    assert torch.equal(once, play(EnvPoolEnvs("Hopper-v4", 4, EnvConfig(), num_threads=1), 5))
    assert not torch.equal(once, play(envs, 6))


def test_neighbouring_seeds_share_no_environment() -> None:
    envs = EnvPoolEnvs("Hopper-v4", 4, EnvConfig())
    rows = torch.cat([envs.reset(seed)["state"] for seed in range(4)])
    assert len(np.unique(rows.numpy(), axis=0)) == 16


def test_shared_arguments_mean_the_same_in_both() -> None:
    kwargs = {"reset_noise_scale": 0.0, "healthy_reward": 5.0, "exclude_current_positions_from_observation": False}
    config = EnvConfig(kwargs=kwargs)
    ours = make_envs("Hopper-v4", config, 1, 1)
    theirs = GymnasiumEnvs("Hopper-v4", 1, config)
    assert isinstance(ours, EnvPoolEnvs)
    np.testing.assert_allclose(ours.reset(0)["state"], theirs.reset(0)["state"], atol=1e-6)
    action = torch.full((1, 3), 0.1)
    np.testing.assert_allclose(ours.step(action).reward, theirs.step(action).reward, atol=1e-5)


def test_tasks_that_envpool_lacks_or_cannot_make_alike_are_refused_when_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"EnvPool has no 'Pendulum-v1'.*Hopper-v4.*--env.backend gymnasium"):
        choose_backend("Pendulum-v1", EnvConfig(backend="envpool"))
    with pytest.raises(ConfigError, match=r"env.kwargs {'healthy_z_range': \[0.5, 2.0\]}"):
        choose_backend("Hopper-v4", EnvConfig(backend="envpool", kwargs={"healthy_z_range": [0.5, 2.0]}))
    with pytest.raises(ConfigError, match=r"env\.processes is for Gymnasium's .*, and env\.backend is envpool"):
        choose_backend("Hopper-v4", EnvConfig(backend="envpool", processes=True))


def test_an_argument_of_the_wrong_type_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"EnvPool cannot make Hopper-v4 with env.kwargs {'healthy_reward': 'lots'}"):
        make_envs("Hopper-v4", EnvConfig(kwargs={"healthy_reward": "lots"}), 2, 1).reset(0)


def test_every_task_can_also_be_made_by_gymnasium_for_video() -> None:
    for task in TASKS:
        assert find_task(task).id == task


@pytest.mark.parametrize(
    ("cores", "threads", "first"),
    [([0, 1], 2, 0), ([4, 5, 6], 3, 4), ([0, 1, 2, 3], 2, -1), ([0, 2], 2, -1), ([0], 2, -1)],
)
def test_threads_are_pinned_only_where_they_take_every_core(
    cores: list[int], threads: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.envs.envpool.core_numbers", lambda: cores)
    assert first_core(threads) == first
