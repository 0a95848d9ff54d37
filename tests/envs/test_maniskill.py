"""ManiSkill on the CPU; everything here is skipped where it or a Vulkan driver is missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import detent
from detent.config import EnvConfig
from detent.config.presets import configure
from detent.envs import Step, env_spec, make_envs, make_eval_envs
from detent.envs.maniskill import DEFAULTS, ManiSkillBatch, ManiSkillPool
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.training.run_directory import read_rows
from detent.training.video import record_run

# Numbers in the state vector, action dimensions, and the evaluation length of the paper's scripts.
STATE_TASKS = {
    "PushCube-v1": (35, 8, 50),
    "PickCube-v1": (42, 8, 50),
    "PullCube-v1": (35, 8, 50),
    "PokeCube-v1": (54, 8, 50),
    "LiftPegUpright-v1": (32, 8, 50),
    "PickCubeSO100-v1": (36, 6, 50),
    "PushT-v1": (31, 7, 100),
    "RollBall-v1": (44, 8, 80),
    "StackCube-v1": (48, 8, 50),
}
COMMAND_LINE = "import sys; from detent.cli import main; sys.exit(main())"
TINY = {
    "env.num_envs": 2,
    "rollout_steps": 8,
    "steps": 32,
    "threads": 1,
    "update.minibatches": 2,
    "eval.episodes": 1,
    "eval.deploy_episodes": 1,
    "eval.interval": 10_000,
    "checkpoint.interval": 16,
}


@pytest.fixture(scope="module", autouse=True)
def _needs_maniskill() -> None:
    if importlib.util.find_spec("mani_skill") is None:
        pytest.skip("mani_skill is not installed")
    code = "import sapien; sapien.render.RenderMaterial()"
    if subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0:
        pytest.skip("SAPIEN finds no Vulkan driver")


def their_own(task: str, **kwargs: Any) -> Any:
    """The environment as ManiSkill's documentation makes it for CPU training: our oracle."""
    importlib.import_module("mani_skill.envs")
    import gymnasium
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    made = gymnasium.make(
        task, obs_mode="state", sim_backend="physx_cpu", render_backend="cpu", **{**DEFAULTS, **kwargs}
    )
    return CPUGymWrapper(made, ignore_terminations=True, record_metrics=True)


def actions(count: int, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-1, 1, (count, size)).astype(np.float32)


@pytest.mark.parametrize("task", STATE_TASKS)
def test_every_state_task_is_made_stepped_and_trained(task: str, tmp_path: Path) -> None:
    config = configure(task, overrides=TINY)
    assert config.scale == "cpu"
    spec = env_spec(task, config.env)
    assert (spec.observation.size, spec.action.size, spec.max_episode_steps) == STATE_TASKS[task]
    assert spec.action.low == (-1.0,) * spec.action.size
    result = detent.train(config, out=tmp_path / "run")
    assert result.finished
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [16, 32]
    assert all(np.isfinite(row["policy_loss"]) for row in rows)
    assert result.evaluation is not None
    played = result.evaluation["stochastic"]
    assert played["length"] == STATE_TASKS[task][2], "evaluation plays to the time limit"
    assert set(played) >= {"success_once", "success_at_end"}


def test_the_pool_gives_what_maniskill_gives() -> None:
    """Two episodes and the beginning of a third, bit for bit; the seeds of episodes are drawn from that of reset."""
    pool = ManiSkillPool("PushCube-v1", 2, EnvConfig(kwargs={"max_episode_steps": 7}), 2)
    state = pool.reset(3)["state"]
    seeds = [np.random.default_rng(seed) for seed in np.random.SeedSequence(3).generate_state(2)]
    theirs = their_own("PushCube-v1", max_episode_steps=7)
    played = actions(18, 8)
    for i, episode_seeds in enumerate(seeds):
        if i == 1:
            pool.reset(3)
        expected, _ = theirs.reset(seed=int(episode_seeds.integers(2**31)))
        np.testing.assert_array_equal(state[i], expected)
        total = 0.0
        for t, action in enumerate(played):
            step = pool.step(torch.from_numpy(action).expand(2, -1))
            expected, reward, _, truncated, info = theirs.step(action)
            total += float(reward)
            assert step.reward[i] == reward
            assert bool(step.truncated[i]) == bool(truncated) == (t % 7 == 6)
            if truncated:
                assert step.final_observation is not None
                np.testing.assert_array_equal(step.final_observation["state"][i], expected)
                episode = step.episodes[i]
                assert (episode.env, episode.length) == (i, 7)
                assert episode.total_reward == pytest.approx(total, rel=1e-6)
                assert episode.success == float(info["episode"]["success_once"])
                assert episode.success_at_end == float(info["episode"]["success_at_end"])
                expected, _ = theirs.reset(seed=int(episode_seeds.integers(2**31)))
                total = 0.0
            np.testing.assert_array_equal(step.observation["state"][i], expected)
    pool.close()


def play(envs: ManiSkillPool, seed: int) -> Tensor:
    seen = [envs.reset(seed)["state"]]
    for action in actions(15, 8):
        step = envs.step(torch.from_numpy(action).expand(envs.num_envs, -1))
        seen += [step.observation["state"], step.reward[:, None].expand(-1, 35)]
    return torch.stack(seen)


def test_a_seed_gives_the_same_bits_whatever_was_played_before_and_in_however_many_processes() -> None:
    config = EnvConfig(kwargs={"max_episode_steps": 6})
    one, two = ManiSkillPool("PushCube-v1", 3, config, 1), ManiSkillPool("PushCube-v1", 3, config, 2)
    once = play(one, 5)
    other = play(one, 6)
    assert torch.equal(play(one, 5), once)
    assert torch.equal(play(two, 5), once)
    assert not torch.equal(other, once)
    assert len(torch.unique(once[0], dim=0)) == 3, "every environment has a seed of its own"
    one.close()
    two.close()


def push(state: Tensor) -> Tensor:
    """An action for PushCube under pd_ee_delta_pos: go behind the cube, then push it to the goal."""
    hand, goal, cube = state[18:21], state[25:28], state[28:31]
    start = cube + torch.tensor([-0.12, 0.0, 0.0])
    behind = bool((hand[:2] - start[:2]).norm() < 0.02) or bool(hand[2] < 0.06 and hand[0] < cube[0])
    height = 0.02 if behind else 0.15
    target = torch.tensor([float(start[0]), float(start[1]), height])
    if behind and hand[2] < 0.05:
        target = torch.tensor([float(goal[0]), float(cube[1]), height])
    return torch.cat([((target - hand) / 0.1).clamp(-1, 1), torch.tensor([-1.0])])


def solve(envs: Any) -> list[Step]:
    observation = envs.reset(1)["state"]
    steps: list[Step] = []
    while not (steps and steps[-1].episodes):
        steps.append(envs.step(push(observation[0])[None]))
        observation = steps[-1].observation["state"]
    envs.close()
    return steps


def test_a_solved_task_ends_the_episode_in_training_and_not_in_evaluation() -> None:
    config = EnvConfig(kwargs={"control_mode": "pd_ee_delta_pos"})
    training = solve(make_envs("PushCube-v1", config, 1, 1))
    last = training[-1]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True], [False])
    assert len(training) < 50
    assert (last.episodes[0].success, last.episodes[0].success_at_end) == (1.0, 1.0)
    assert last.final_observation is not None
    # Solved: the cube lies within the goal's radius of 0.1; the next episode has another cube.
    final = last.final_observation["state"][0]
    assert abs(final[28] - final[25]) < 0.1
    assert (last.observation["state"][0, 28:30] - final[28:30]).norm() > 0.05

    evaluation = solve(make_eval_envs("PushCube-v1", config, 1, 1))
    assert len(evaluation) == 50
    assert (evaluation[-1].terminated.tolist(), evaluation[-1].truncated.tolist()) == ([False], [True])
    assert evaluation[-1].episodes[0].success == 1.0


def test_the_gpu_adapter_gives_what_maniskill_gives() -> None:
    """On the CPU it can have one environment; the rest of it is the same."""
    envs = ManiSkillBatch("PushCube-v1", 1, EnvConfig(kwargs={"max_episode_steps": 5}), "physx_cpu")
    assert envs.spec == env_spec("PushCube-v1", EnvConfig(kwargs={"max_episode_steps": 5}))
    seed = int(np.random.SeedSequence(4).generate_state(1)[0]) >> 1
    theirs = their_own("PushCube-v1", max_episode_steps=5)
    expected, _ = theirs.reset(seed=seed)
    np.testing.assert_array_equal(envs.reset(4)["state"][0], expected)
    rewards = []
    for t, action in enumerate(actions(5, 8)):
        # Past the bounds: clipped.
        step = envs.step(torch.from_numpy(np.where(action > 0.9, 5.0, action).astype(np.float32))[None])
        expected, reward, _, _, _ = theirs.step(np.where(action > 0.9, 1.0, action).astype(np.float32))
        rewards.append(float(reward))
        assert step.reward.tolist() == [rewards[-1]]
        assert (step.terminated.item(), step.truncated.item()) == (False, t == 4)
        seen = step.observation if step.final_observation is None else step.final_observation
        np.testing.assert_array_equal(seen["state"][0], expected)
    assert step.final_observation is not None
    assert not torch.equal(step.observation["state"], step.final_observation["state"])
    episode = step.episodes[0]
    assert (episode.env, episode.length, episode.success, episode.success_at_end) == (0, 5, 0.0, 0.0)
    assert episode.total_reward == pytest.approx(sum(rewards), rel=1e-5)
    assert torch.equal(envs.reset(4)["state"], envs.reset(4)["state"])
    envs.close()


def test_the_gpu_adapter_ends_a_solved_episode_as_the_pool_does() -> None:
    config = EnvConfig(kwargs={"control_mode": "pd_ee_delta_pos"})
    steps = solve(ManiSkillBatch("PushCube-v1", 1, config, "physx_cpu"))
    assert steps[-1].terminated.tolist() == [True]
    assert (steps[-1].episodes[0].success, steps[-1].episodes[0].success_at_end) == (1.0, 1.0)
    assert steps[-1].episodes[0].length == len(steps)


def play_batch(envs: ManiSkillBatch, between: Callable[[], None] = lambda: None) -> list[list[float]]:
    """Observations of twelve steps, with two new episodes among them."""
    seen = [envs.reset(4)["state"][0].tolist()]
    for t, action in enumerate(actions(12, 8)):
        if t == 3:
            between()
        seen.append(envs.step(torch.from_numpy(action.astype(np.float32))[None]).observation["state"][0].tolist())
    return seen


def test_the_gpu_adapter_has_random_numbers_of_its_own() -> None:
    """ManiSkill draws new episodes from torch's global numbers; evaluation in between must not change training."""
    config = EnvConfig(kwargs={"max_episode_steps": 5})
    envs, others = (ManiSkillBatch("PushCube-v1", 1, config, "physx_cpu") for _ in range(2))

    def evaluate() -> None:
        play_batch(others)
        torch.rand(7)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    alone = play_batch(envs)
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn from the global numbers"
    assert play_batch(envs, between=evaluate) == alone
    assert alone[5] != alone[10] != alone[0], "every episode begins elsewhere"
    envs.close()
    others.close()


@pytest.mark.parametrize("adapter", ["pool", "batch"])
def test_attributes_are_set_now_and_hold_after_a_rebuild(adapter: str) -> None:
    config = EnvConfig(num_envs=1)
    envs: Any = (
        ManiSkillPool("PushCube-v1", 1, config, 1)
        if adapter == "pool"
        else ManiSkillBatch("PushCube-v1", 1, config, "physx_cpu")
    )

    def spread() -> float:
        """Of the arm's first positions over four rebuilds: its seven joints come first in the state."""
        states = [envs.reset(seed)["state"][0, :7] for seed in range(4)]
        return float(torch.stack(states).std(0).max())

    assert spread() > 0.01
    envs.set_attributes({"robot_init_qpos_noise": 0.0})
    assert spread() < 1e-6
    with pytest.raises(RuntimeError, match="has no attribute 'robot_init_qpos_nose' to set; did you mean robot_init_"):
        envs.set_attributes({"robot_init_qpos_nose": 0.0})
    if adapter == "batch":
        envs.close()


def crash_after_three(row: dict[str, Any], policy: Any) -> None:
    if row["iteration"] == 3:
        raise ZeroDivisionError


def test_a_run_that_crashed_resumes_to_the_bit_and_can_be_filmed(tmp_path: Path) -> None:
    # A small camera with the quickest shaders; the film's own take a software renderer half a minute to compile.
    camera = {"shader_pack": "minimal", "width": 96, "height": 64}
    kwargs = {"human_render_camera_configs": camera}
    config = configure("PushCube-v1", overrides={**TINY, "steps": 64, "checkpoint.interval": 32, "env.kwargs": kwargs})
    detent.train(config, out=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        detent.train(config, out=tmp_path / "cut", on_iteration=crash_after_three)
    assert detent.resume(tmp_path / "cut").finished
    whole, cut = (
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_rows(path / "metrics.jsonl")]
        for path in (tmp_path / "whole", tmp_path / "cut")
    )
    assert whole == cut
    files = [checkpoints.directory(tmp_path / name, 64) / "policy.safetensors" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()

    paths = record_run(tmp_path / "whole", max_steps=2)
    reader = imageio_ffmpeg.read_frames(str(paths[0]))
    assert next(reader)["size"] == (96, 64)
    frames = [np.frombuffer(frame, np.uint8) for frame in reader]
    assert len(frames) == 3
    assert all(frame.std() > 10 for frame in frames)


@pytest.mark.parametrize(("task", "obs", "size"), [("PushCube-v1", "rgb+state", 25), ("PickCube-v1", "rgb", 0)])
def test_image_tasks_are_made_stepped_and_trained(task: str, obs: str, size: int, tmp_path: Path) -> None:
    config = configure(task, overrides={**TINY, "env.obs": obs, "env.kwargs": {"max_episode_steps": 6}})
    assert (config.critic.width, config.update.epochs) == (512, 8), "the paper's settings for images"
    result = detent.train(config, out=tmp_path / "run")
    assert result.finished
    policy = detent.load(tmp_path / "run")
    assert (policy.spec.observation.size, policy.spec.observation.image) == (size, (128, 128, 3))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert all(np.isfinite(row["policy_loss"]) and np.isfinite(row["value_loss"]) for row in rows)

    envs = make_envs(task, config.env, 2, 1)
    observation = envs.reset(0)
    assert observation["rgb"].dtype == torch.uint8
    assert observation["rgb"].float().std() > 10, "a scene and not an empty picture"
    raw = {key: value[0].numpy() for key, value in observation.items()}
    batched = policy(observation)
    np.testing.assert_allclose(policy(raw), batched[0], atol=1e-6)
    envs.close()


@pytest.mark.parametrize(
    ("task", "config", "sentence"),
    [
        (
            "PushCub-v1",
            EnvConfig(backend="physx_cpu"),
            r"ManiSkill has no task 'PushCub-v1'; did you mean .*PushCube",
        ),
        (
            "PushCube-v1",
            EnvConfig(kwargs={"control_mode": "by_magic"}),
            r"PushCube-v1 cannot be made with env.kwargs {'control_mode': 'by_magic'}: .*by_magic",
        ),
        (
            "PushCube-v1",
            EnvConfig(kwargs={"max_episode_steps": 0}),
            r"max_episode_steps is 0; it must be a whole number of at least 1",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(task: str, config: EnvConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        env_spec(task, config)


def test_missing_assets_are_named_with_the_command_that_downloads_them(tmp_path: Path) -> None:
    environment = {**os.environ, "MS_ASSET_DIR": str(tmp_path / "assets")}
    # Its standard input stays open: a question would wait for an answer until the time is up.
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND_LINE, "train", "PickSingleYCB-v1", "--out", str(tmp_path / "run")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.wait(timeout=240) == 2
    assert process.stderr is not None
    error = process.stderr.read()
    assert "PickSingleYCB-v1 needs the assets 'ycb'" in error
    assert "python -m mani_skill.utils.download_asset PickSingleYCB-v1 -y" in error
    assert list(tmp_path.iterdir()) == [], "neither a run nor a folder for assets was begun"
    process.communicate()
