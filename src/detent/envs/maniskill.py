"""ManiSkill 3: manipulation tasks on SAPIEN, in worker processes on the CPU or thousands at once on a GPU.

This is the only file that imports mani_skill, and only when one of its tasks is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detent.config import EnvConfig
from detent.config.presets import merged
from detent.envs.attributes import set_attributes
from detent.envs.base import Episode, Simulator, Step, VectorEnv
from detent.envs.random_stream import RandomStream
from detent.envs.spaces import action_spec
from detent.envs.workers import Arrays, ProcessDiedError, SingleStep, WorkerPool, call_in_process
from detent.errors import ConfigError, nearest
from detent.spec import EnvSpec, Observation, ObservationSpec

DEFAULTS: dict[str, Any] = {"control_mode": "pd_joint_delta_pos", "reward_mode": "normalized_dense"}
"""Constructor arguments of the paper's runs; `env.kwargs` override them."""

ENHANCED_DETERMINISM = {"scene_config": {"enable_enhanced_determinism": True}}
"""Keeps environments of one simulation from influencing each other; `sim_config` in `env.kwargs` overrides it."""

DRIVER = (
    "SAPIEN needs a Vulkan driver, also for state observations: on Debian or Ubuntu the package mesa-vulkan-drivers "
    "(Mesa 23 or newer; `make maniskill` installs it), with a GPU its vendor's driver"
)

_PRELOAD = (__name__, "mani_skill.envs")


def installed() -> bool:
    return importlib.util.find_spec("mani_skill") is not None


def require_installed() -> None:
    if not installed():
        raise ConfigError("this is a ManiSkill task, and mani_skill is not installed: pip install 'detent[maniskill]'")


def make_base(
    task: str, config: EnvConfig, num_envs: int = 1, backend: str = "physx_cpu", render_mode: str | None = None
) -> Any:
    """Make ManiSkill's own environment without Gymnasium's wrappers, its observations a state vector or a Dict of `rgb`
    and `state`; raise a ConfigError on failure, and never prompt on the terminal."""
    require_installed()
    # The import registers the tasks.
    importlib.import_module("mani_skill.envs")
    from mani_skill import logger
    from mani_skill.utils.registration import REGISTERED_ENVS
    from mani_skill.utils.wrappers.flatten import FlattenRGBDObservationWrapper

    # ManiSkill warns about every robot's default pose and on every machine without a GPU.
    logger.setLevel(logging.ERROR)
    if task not in REGISTERED_ENVS:
        raise ConfigError(f"ManiSkill has no task '{task}'; {nearest(task, REGISTERED_ENVS)}")
    _require_assets(task)
    arguments = {**DEFAULTS, **config.kwargs}
    arguments.pop("max_episode_steps", None)
    if backend == "physx_cuda":
        arguments["sim_config"] = merged(ENHANCED_DETERMINISM, arguments.get("sim_config", {}))
    try:
        env = REGISTERED_ENVS[task].make(
            num_envs=num_envs,
            obs_mode="state" if config.obs == "state" else "rgb",
            sim_backend=backend,
            render_mode=render_mode,
            **arguments,
        )
    except (Exception, SystemExit) as error:
        raise ConfigError(_why_not_made(task, config.kwargs, error)) from error
    if config.obs == "state":
        return env
    return FlattenRGBDObservationWrapper(env, rgb=True, depth=False, state=config.obs == "rgb+state")


def _why_not_made(task: str, kwargs: Mapping[str, Any], error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if "rendering device" in text or "vk::" in text or "Vulkan" in text:
        return f"{task} cannot be made: {text}. {DRIVER}"
    given = f" with env.kwargs {dict(kwargs)}" if kwargs else ""
    return f"{task} cannot be made{given}: {text}"


def _require_assets(task: str) -> None:
    """Reject a task whose meshes were not downloaded yet; ManiSkill would prompt for the download."""
    from mani_skill.utils import assets

    needed = assets.expand_data_group_into_individual_data_source_ids(task)
    for name in sorted(needed):
        source = assets.DATA_SOURCES[name]
        folder = source.output_dir / source.target_path
        # A failed download leaves an empty folder, which ManiSkill mistakes for the assets.
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(
                f"{task} needs the assets '{name}', which are not in {folder}; download them with: "
                f"python -m mani_skill.utils.download_asset {task} -y"
            )


def _time_limit(task: str, config: EnvConfig) -> int | None:
    from mani_skill.utils.registration import REGISTERED_ENVS

    limit = config.kwargs.get("max_episode_steps", REGISTERED_ENVS[task].max_episode_steps)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"env.kwargs max_episode_steps is {limit!r}; it must be a whole number of at least 1")
    return limit


def _spec_of(env: Any, task: str, config: EnvConfig) -> EnvSpec:
    space = env.unwrapped.single_observation_space
    if config.obs == "state":
        observation = ObservationSpec(int(space.shape[0]))
    else:
        size = int(space["state"].shape[0]) if config.obs == "rgb+state" else 0
        observation = ObservationSpec(size, image=tuple(space["rgb"].shape))
    action = action_spec(env.unwrapped.single_action_space, config.action_low, config.action_high)
    return EnvSpec(observation, action, _time_limit(task, config))


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """Return a task's spaces and time limit, read from an environment in a separate process, which may crash."""
    require_installed()
    settings = {name: getattr(config, name) for name in ("obs", "kwargs", "action_low", "action_high")}
    return _probe(task, json.dumps(settings, sort_keys=True))


@cache
def _probe(task: str, settings: str) -> EnvSpec:
    try:
        return call_in_process(_spec_here, (task, EnvConfig(**json.loads(settings))), _PRELOAD)
    except ProcessDiedError as error:
        raise ConfigError(f"the process that made {task} {error}. {DRIVER}; run `detent doctor` for details") from None


def _make_in_worker(task: str, config: EnvConfig) -> Any:
    # lavapipe would otherwise start a thread per core in every worker.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    torch.set_num_threads(1)
    return make_base(task, config)


def _spec_here(task: str, config: EnvConfig) -> EnvSpec:
    env = _make_in_worker(task, config)
    try:
        return _spec_of(env, task, config)
    finally:
        env.close()


@dataclass(frozen=True)
class _WorkerEnvMaker:
    """Makes one environment in the worker process that receives it."""

    task: str
    config: EnvConfig
    index: int
    limit: int | None

    def __call__(self) -> _WorkerEnv:
        return _WorkerEnv(self)


class _WorkerEnv:
    """One environment simulated on the CPU; every episode has its own seed, drawn from the last reset's seed."""

    def __init__(self, maker: _WorkerEnvMaker) -> None:
        self._maker = maker
        self._env = _make_in_worker(maker.task, maker.config)
        self._fresh = True

    def reset(self, seed: int) -> Arrays:
        self._seeds = np.random.default_rng(seed)
        # Rebuild the scene: PhysX's memory of contacts must not carry over past a checkpoint.
        options = {} if self._fresh else {"reconfigure": True}
        self._fresh = False
        return self._begin(options)

    def _begin(self, options: dict[str, Any]) -> Arrays:
        self._total_reward, self._length, self._success = 0.0, 0, False
        raw, _ = self._env.reset(seed=int(self._seeds.integers(2**31)), options=options)
        return _arrays(raw)

    def step(self, action: NDArray[np.float64]) -> SingleStep:
        maker = self._maker
        raw, raw_reward, raw_terminated, _, info = self._env.step(action.astype(np.float32))
        observation, reward = _arrays(raw), float(raw_reward)
        self._total_reward += reward
        self._length += 1
        self._success |= bool(info.get("success", False))
        terminated = maker.config.partial_resets and bool(raw_terminated)
        truncated = maker.limit is not None and self._length >= maker.limit
        if not (terminated or truncated):
            return SingleStep(observation, reward, False, False)
        episode = Episode(
            env=maker.index,
            total_reward=self._total_reward,
            length=self._length,
            success=float(self._success) if "success" in info else None,
            success_at_end=float(info["success"]) if "success" in info else None,
            info={
                key: float(value)
                for key, value in info.items()
                if isinstance(value, Tensor) and value.numel() == 1 and key not in ("success", "elapsed_steps")
            },
        )
        return SingleStep(self._begin({}), reward, terminated, truncated, observation, episode)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        set_attributes(self._env, attributes, f"environment {self._maker.index} ({self._maker.task})")

    def close(self) -> None:
        self._env.close()


def _arrays(raw: Any) -> Arrays:
    """Remove the batch dimension from ManiSkill's batch of one observation."""
    tensors = raw if isinstance(raw, Mapping) else {"state": raw}
    return {key: value[0].numpy() for key, value in tensors.items()}


class ManiSkillPool:
    """`num_envs` environments on the CPU, in `workers` single-threaded processes."""

    def __init__(self, task: str, num_envs: int, config: EnvConfig, workers: int) -> None:
        self.spec = env_spec(task, config)
        self.num_envs = num_envs
        self._task, self._workers = task, workers
        self._low, self._high = np.asarray(self.spec.action.low), np.asarray(self.spec.action.high)
        self._makers = [_WorkerEnvMaker(task, config, i, self.spec.max_episode_steps) for i in range(num_envs)]
        self._pool: WorkerPool | None = None
        self._attributes: dict[str, Any] = {}

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._attributes |= attributes
        if self._pool is not None:
            self._pool.set_attributes(attributes)

    def reset(self, seed: int) -> Observation:
        if self._pool is None:
            self._pool = WorkerPool(self._task, self._makers, self._workers, self.spec, _PRELOAD)
            self._pool.set_attributes(self._attributes)
        return self._pool.reset(np.random.SeedSequence(seed).generate_state(self.num_envs).tolist())

    def step(self, action: Tensor) -> Step:
        if self._pool is None:
            raise RuntimeError("reset(seed) makes the environments; call it before step()")
        return self._pool.step(np.clip(action.detach().cpu().numpy().astype(np.float64), self._low, self._high))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def make_single(task: str, config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """Make one environment with Gymnasium's interface and ManiSkill's own camera; it runs to the time limit."""
    env = make_base(task, config, render_mode="rgb_array")
    from mani_skill.utils.registration import TimeLimitWrapper
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    limited = TimeLimitWrapper(env, _time_limit(task, config))
    single: gymnasium.Env[Any, Any] = CPUGymWrapper(limited, ignore_terminations=True)
    single.metadata = {**single.metadata, "render_fps": env.unwrapped.control_freq}
    return single


class ManiSkillBatch:
    """`num_envs` environments in one simulation on a GPU; tensors stay on the simulator's device.

    Built on ManiSkill's own vector environment, which resets in the step that ends an episode. With one environment it
    also runs on the CPU, which is how it is tested.
    """

    def __init__(self, task: str, num_envs: int, config: EnvConfig, backend: str = "physx_cuda") -> None:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            env = make_base(task, config, num_envs, backend)
        from mani_skill.utils.registration import TimeLimitWrapper
        from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

        self.spec = _spec_of(env, task, config)
        self.num_envs = num_envs
        self._envs = ManiSkillVectorEnv(
            TimeLimitWrapper(env, self.spec.max_episode_steps),
            auto_reset=True,
            ignore_terminations=not config.partial_resets,
            record_metrics=True,
        )
        self._device: torch.device = self._envs.device
        # Episodes after the first draw from torch's global generator, where evaluation must not disturb training.
        self._stream = RandomStream(self._device)
        self._low = torch.tensor(self.spec.action.low, device=self._device)
        self._high = torch.tensor(self.spec.action.high, device=self._device)
        self._who = f"the simulation of {task}"

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        # Rebuilding reconfigures the same object, which keeps them.
        set_attributes(self._envs.unwrapped, attributes, self._who)

    def reset(self, seed: int) -> Observation:
        seeds = (np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1).tolist()
        self._stream.seed(seed)
        with self._stream():
            raw, _ = self._envs.reset(seed=seeds, options={"reconfigure": True})
        return _batched(raw)

    def step(self, action: Tensor) -> Step:
        clipped = torch.minimum(torch.maximum(action.detach().to(self._device), self._low), self._high)
        with self._stream():
            raw, reward, terminated, truncated, info = self._envs.step(clipped)
        final: Observation | None = None
        episodes: tuple[Episode, ...] = ()
        if "final_observation" in info:
            final = _batched(info["final_observation"])
            episodes = _finished(info["final_info"], terminated | truncated)
        return Step(_batched(raw), reward.float(), terminated, truncated, final, episodes)

    def close(self) -> None:
        self._envs.close()


def _finished(info: Mapping[str, Any], ended: Tensor) -> tuple[Episode, ...]:
    """Return the statistics of the episodes that ended, copied to the host in one transfer."""
    rows = ended.nonzero().flatten()
    measured = info["episode"]
    columns = [rows, measured["return"][rows], measured["episode_len"][rows]]
    if "success" in info:
        columns += [measured["success_once"][rows], info["success"][rows]]
    table = torch.stack([column.double() for column in columns], dim=1).tolist()
    return tuple(
        Episode(
            env=int(row),
            total_reward=total_reward,
            length=int(length),
            success=success[0] if success else None,
            success_at_end=success[1] if success else None,
        )
        for row, total_reward, length, *success in table
    )


def _batched(raw: Any) -> Observation:
    return dict(raw) if isinstance(raw, Mapping) else {"state": raw}


class ManiSkillOnCPU(Simulator):
    """ManiSkill 3 on the CPU, in worker processes."""

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        return ManiSkillPool(task, num_envs, config, threads)

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        return env_spec(task, config)

    def make_rendering(self, task: str, config: EnvConfig) -> gymnasium.Env[Any, Any]:
        return make_single(task, config)


class ManiSkillOnGPU(ManiSkillOnCPU):
    """ManiSkill 3 on a GPU, all environments in one simulation."""

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        return ManiSkillBatch(task, num_envs, config)
