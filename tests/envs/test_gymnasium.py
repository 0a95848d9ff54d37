from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from detent.config import EnvConfig
from detent.envs import Episode, Step, choose_backend, env_spec, make_envs, make_rendering_env
from detent.envs.gymnasium import GymnasiumEnvs, find_task, make_single
from detent.errors import ConfigError

SCRIPTED = "detent.envs.scripted:Scripted-v0"
TARGET = "detent.envs.scripted:Target-v0"

# One round of ScriptedEnv by hand, from the start of its episode 0:
# reward, next observation (episode, step), terminated, truncated, final observation.
ROUND = [
    (1.0, (0.0, 1.0), False, False, None),
    (2.0, (0.0, 2.0), False, False, None),
    (3.0, (1.0, 0.0), True, False, (0.0, 3.0)),
    (10.0, (1.0, 1.0), False, False, None),
    (20.0, (2.0, 0.0), False, True, (1.0, 2.0)),
    (100.0, (0.0, 0.0), True, True, (2.0, 1.0)),
]
# Where in the round an environment is that begins with episode 0, 1, 2.
OFFSET = {0: 0, 1: 3, 2: 5}
# Return, length, success at any time, info of the last step, success in it.
PLAYED = {
    0: (6.0, 3, 0.0, {"t": 2.0}, 0.0),
    1: (30.0, 2, 1.0, {"t": 1.0}, 0.0),
    2: (100.0, 1, 0.0, {"t": 0.0}, 0.0),
}


@pytest.fixture(autouse=True)
def _faulty_envs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def seed_that_begins_with(starts: tuple[int, ...]) -> int:
    return next(
        seed for seed in range(1000) if tuple(np.random.SeedSequence(seed).generate_state(len(starts)) % 3) == starts
    )


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("processes", [False, True])
def test_every_autoreset_mode_gives_the_stream_written_by_hand(mode: AutoresetMode, processes: bool) -> None:
    starts = (0, 1, 2)
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig(processes=processes), mode)
    first = envs.reset(seed_that_begins_with(starts))
    assert first["state"].tolist() == [[0, 0], [1, 0], [2, 0]]
    for t in range(13):
        step = envs.step(torch.zeros(3, 1))
        expected = [ROUND[(OFFSET[start] + t) % 6] for start in starts]
        rewards, observations, terminated, truncated, finals = zip(*expected, strict=True)
        assert step.reward.tolist() == list(rewards)
        assert step.observation["state"].tolist() == [list(o) for o in observations]
        assert step.terminated.tolist() == list(terminated)
        assert step.truncated.tolist() == list(truncated)
        ended = [i for i in range(3) if finals[i] is not None]
        assert (step.final_observation is None) == (not ended)
        for i in ended:
            assert step.final_observation is not None
            assert step.final_observation["state"][i].tolist() == list(finals[i])
        assert step.episodes == tuple(Episode(i, *PLAYED[int(finals[i][0])]) for i in ended)
    envs.close()


def test_a_step_is_not_changed_by_the_steps_after_it() -> None:
    envs = GymnasiumEnvs(SCRIPTED, 1, EnvConfig())
    first = envs.reset(seed_that_begins_with((0,)))
    steps = [envs.step(torch.zeros(1, 1)) for _ in range(6)]
    assert first["state"].tolist() == [[0, 0]]
    assert [tuple(step.observation["state"][0].tolist()) for step in steps] == [row[1] for row in ROUND]


def play(envs: GymnasiumEnvs, seed: int, steps: int = 20) -> torch.Tensor:
    """Everything that 20 steps with fixed actions show, as one tensor."""
    seen = [envs.reset(seed)["state"].flatten()]
    low, high = torch.tensor(envs.spec.action.low), torch.tensor(envs.spec.action.high)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        uniform = torch.rand(envs.num_envs, envs.spec.action.size, generator=generator)
        step = envs.step(low + (high - low) * uniform)
        seen += [step.observation["state"].flatten(), step.reward, step.terminated.float(), step.truncated.float()]
    envs.close()
    return torch.cat(seen)


@pytest.mark.parametrize("task", [TARGET, "Hopper-v4"])
def test_same_seed_gives_same_bits_and_another_seed_others(task: str) -> None:
    config = EnvConfig(backend="gymnasium")
    envs = GymnasiumEnvs(task, 3, config)
    once = play(envs, 5)
    assert torch.equal(once, play(envs, 5))
    assert torch.equal(once, play(GymnasiumEnvs(task, 3, config), 5))
    assert not torch.equal(once, play(envs, 6))


def test_workers_and_this_process_give_the_same_bits() -> None:
    alone = play(GymnasiumEnvs(TARGET, 2, EnvConfig()), 5)
    assert torch.equal(alone, play(GymnasiumEnvs(TARGET, 2, EnvConfig(processes=True)), 5))


def test_neighbouring_seeds_share_no_environment() -> None:
    envs = GymnasiumEnvs(TARGET, 4, EnvConfig())
    rows = torch.cat([envs.reset(seed)["state"] for seed in range(4)])
    assert len(np.unique(rows.numpy(), axis=0)) == 16


def test_reset_forgets_hidden_state_and_dict_observations_are_concatenated() -> None:
    envs = GymnasiumEnvs("faulty_envs:Remembering-v0", 1, EnvConfig())
    first = envs.reset(3)["state"].tolist()
    # The keys in the order of the space: a (the number of resets), z.
    assert envs.spec.observation.keys == ("a", "z")
    assert first == [[1, 7, 8]]
    assert envs.step(torch.zeros(1, 1)).observation["state"].tolist() == [[2, 7, 8]]
    assert envs.reset(3)["state"].tolist() == first


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_dict_observations_cross_process_borders(mode: AutoresetMode) -> None:
    envs = GymnasiumEnvs("faulty_envs:Remembering-v0", 2, EnvConfig(processes=True), mode)
    envs.reset(3)
    step = envs.step(torch.zeros(2, 1))
    assert step.observation["state"].tolist() == [[2, 7, 8]] * 2
    assert step.final_observation is not None
    assert step.final_observation["state"].tolist() == [[1, 7, 8]] * 2
    envs.close()


def test_a_worker_that_dies_is_named() -> None:
    envs = GymnasiumEnvs("faulty_envs:Moody-v0", 3, EnvConfig(processes=True))
    envs.reset(0)
    with pytest.raises(RuntimeError, match=r"^the worker process of environment 1 \(.*Moody-v0\) .* exit code 7$"):
        envs.step(torch.tensor([[0.0], [1.0], [0.0]]))
    envs.close()
    assert envs.reset(0)["state"].shape == (3, 1)
    envs.close()


def test_a_worker_that_dies_while_its_environment_is_made_is_named() -> None:
    envs = GymnasiumEnvs("faulty_envs:Moody-v0", 1, EnvConfig(processes=True, kwargs={"dies_in_worker": True}))
    with pytest.raises(RuntimeError, match=r"^the worker process of environment 0 .* exit code 9$"):
        envs.reset(0)


def test_ctrl_c_leaves_the_workers_to_the_trainer() -> None:
    envs = GymnasiumEnvs(TARGET, 2, EnvConfig(processes=True))
    envs.reset(0)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
    for _ in range(10):
        envs.step(torch.tensor([[-2.0, 5.0]] * 2))
    envs.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.filterwarnings("ignore:.*Received the following error")
@pytest.mark.filterwarnings("ignore:.*Traceback")
@pytest.mark.filterwarnings("ignore:.*Raising the last exception")
def test_an_error_inside_an_environment_names_its_index(processes: bool) -> None:
    envs = GymnasiumEnvs("faulty_envs:Moody-v0", 3, EnvConfig(processes=processes))
    envs.reset(0)
    with pytest.raises(RuntimeError, match=r"environment 2 \(Moody-v0\) failed in step\(\): KeyError: 'a bad mood'"):
        envs.step(torch.tensor([[0.0], [0.0], [0.5]]))
    envs.close()


def test_a_bound_that_float32_rounds_outward_stays_inside_a_float64_box() -> None:
    envs = GymnasiumEnvs("faulty_envs:Moody-v0", 1, EnvConfig(kwargs={"high": 0.1}))
    envs.reset(0)
    assert float(torch.tensor(0.1)) > 0.1
    assert isinstance(envs.step(torch.tensor([[0.1]])), Step)


def test_time_limit_truncates_and_is_known() -> None:
    envs = GymnasiumEnvs(TARGET, 1, EnvConfig())
    envs.reset(0)
    assert envs.spec.max_episode_steps == 8
    steps = [envs.step(torch.tensor([[-2.0, 5.0]])) for _ in range(8)]
    assert [step.truncated.item() for step in steps] == [False] * 7 + [True]
    assert not any(step.terminated.item() for step in steps)
    assert steps[-1].episodes[0].total_reward == pytest.approx(sum(step.reward.item() for step in steps), abs=1e-5)


def test_perfect_action_of_target_earns_nothing_less_than_zero() -> None:
    envs = GymnasiumEnvs(TARGET, 2, EnvConfig())
    observation = envs.reset(0)["state"]
    # Middle of the range plus 0.4 ranges times the observation; the ranges are [-3, -1] and [0, 10].
    action = torch.tensor([-2.0, 5.0]) + torch.tensor([0.8, 4.0]) * observation
    assert envs.step(action).reward.abs().max() < 1e-10
    worst = torch.where(observation > 0, torch.tensor([-3.0, 0.0]), torch.tensor([-1.0, 10.0]))
    envs.reset(0)
    assert (envs.step(worst).reward <= -0.5).all()


def test_old_versions_are_made_without_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="Hopper-v4 is out of date"):
        gymnasium.make("Hopper-v4").close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = make_single("Hopper-v4", {})
    assert [str(warning.message) for warning in caught] == []
    assert env.spec is not None
    assert env.spec.id == "Hopper-v4"
    env.close()


def test_single_environment_can_render() -> None:
    env = make_single("Hopper-v4", {}, render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    env.close()


def test_unknown_task_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"has no environment 'HalfCheeta-v4'; did you mean .*HalfCheetah-v4"):
        find_task("HalfCheeta-v4")
    with pytest.raises(ConfigError, match=r"'Hopper'; did you mean Hopper-v\d"):
        find_task("Hopper")


@pytest.mark.parametrize("name", ["Hoper-v4", "HalfCheeta-v3", "CarRacin-v3", "phys2d/Pendulum-v1", "CartPol-v1"])
def test_only_tasks_that_can_be_trained_here_are_proposed(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_task(name)
    sentence = str(raised.value)
    assert "package.module:EnvId-v0, or with env= in Python" in sentence
    if "did you mean" not in sentence:
        return
    proposed = sentence.partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert 1 <= len(proposed) <= 3
    for task in proposed:
        assert env_spec(task, EnvConfig()).action.size > 0


def test_a_task_like_no_other_is_refused_without_the_whole_registry() -> None:
    with pytest.raises(ConfigError) as raised:
        find_task("Foo")
    assert str(raised.value).startswith("Gymnasium has no environment 'Foo'. An environment of your own is given as ")
    assert "Ant" not in str(raised.value)


def test_an_environment_without_pictures_is_refused_in_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match=r"Target-v0 renders no pictures: its metadata has render_modes \[\]"):
            make_rendering_env(TARGET, EnvConfig())


def test_unknown_module_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"module 'no_such.module' of task .* No module named 'no_such'"):
        find_task("no_such.module:Env-v0")


def test_wrong_constructor_arguments_are_refused_by_name() -> None:
    config = EnvConfig(backend="gymnasium", kwargs={"legs": 3})
    with pytest.raises(ConfigError, match=r"Hopper-v4 cannot be made with env.kwargs {'legs': 3}: .*'legs'"):
        env_spec("Hopper-v4", config)
    with pytest.raises(ConfigError, match=r"env\.kwargs"):
        GymnasiumEnvs("Hopper-v4", 2, config)


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        GymnasiumEnvs(TARGET, 1, EnvConfig()).step(torch.zeros(1, 2))


def test_processes_and_unknown_arguments_choose_gymnasium() -> None:
    assert choose_backend("Hopper-v4", EnvConfig(processes=True)) == "gymnasium"
    assert choose_backend("Hopper-v4", EnvConfig(kwargs={"healthy_z_range": [0.5, 2.0]})) == "gymnasium"
    assert choose_backend("Hopper-v4", EnvConfig(backend="gymnasium")) == "gymnasium"
    assert choose_backend("Pendulum-v1", EnvConfig()) == "gymnasium"
    assert isinstance(make_envs(TARGET, EnvConfig(), 2, 1), GymnasiumEnvs)
