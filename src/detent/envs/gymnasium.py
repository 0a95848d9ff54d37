"""Gymnasium environments in this process or in worker processes, whatever their autoreset mode."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from detent.config import EnvConfig
from detent.config.presets import is_maniskill, table
from detent.envs.attributes import set_attributes
from detent.envs.base import Episode, Simulator, Step, VectorEnv
from detent.envs.spaces import action_spec, observation_spec
from detent.envs.workers import Arrays, SingleStep, WorkerPool
from detent.errors import ConfigError
from detent.registry import import_path
from detent.spec import ActionSpec, EnvSpec, Observation, ObservationSpec


def find_task(task: str) -> Registration:
    """Return the registration of a task, `EnvId-v0` or `package.module:EnvId-v0`; reject unknown names."""
    module, colon, name = task.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ConfigError(
                f"the module '{module}' of task '{task}' cannot be imported: {type(error).__name__}: {error}"
            ) from error
    if name not in gymnasium.registry:
        close = _similar_tasks(name)
        guess = f"; did you mean {' or '.join(close)}?" if close else "."
        raise ConfigError(
            f"Gymnasium has no environment '{name}'{guess} An environment of your own is given as "
            "package.module:EnvId-v0, or with env= in Python; a ManiSkill task that `detent list tasks` does not have "
            "takes --env.backend physx_cpu or physx_cuda"
        )
    return gymnasium.registry[name]


def _similar_tasks(name: str) -> list[str]:
    """Return at most three tasks of a similar name that can be trained on this machine."""
    close = difflib.get_close_matches(name, {*gymnasium.registry, *table("tasks")}, n=8)
    return list(itertools.islice(filter(_trainable, close), 3))


def _trainable(task: str) -> bool:
    """Return whether a task can be made here and has spaces to learn in; many registered ones lack their package."""
    if is_maniskill(task):
        return importlib.util.find_spec("mani_skill") is not None
    try:
        env_spec(EnvMaker(task, {}), EnvConfig())
    except ConfigError:
        return False
    return True


def make_single(
    task: str | Registration, kwargs: Mapping[str, Any], render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Make one plain environment, as for video; constructor errors become a ConfigError."""
    # Made from its registration: when asked by name, Gymnasium warns that every -v4 task is out of date.
    registration = find_task(task) if isinstance(task, str) else task
    arguments = dict(kwargs) if render_mode is None else {**kwargs, "render_mode": render_mode}
    try:
        return gymnasium.make(registration, disable_env_checker=True, **arguments)
    except Exception as error:
        given = f" with env.kwargs {dict(kwargs)}" if kwargs else ""
        raise ConfigError(f"{registration.id} cannot be made{given}: {type(error).__name__}: {error}") from error


def make_rendering(task: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make one plain environment that renders pictures; an environment that cannot is a ConfigError."""
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of what is about to fail.
            warnings.filterwarnings("ignore", ".*render_mode='rgb_array' that is not in the possible render_modes")
            return make_single(task, kwargs, render_mode="rgb_array")
    except ConfigError:
        env = make_single(task, kwargs)
        modes = env.metadata.get("render_modes", [])
        env.close()
        if "rgb_array" in modes:
            raise
        raise ConfigError(
            f"{task} renders no pictures: its metadata has render_modes {modes}, and a video needs 'rgb_array'; let "
            "the environment take render_mode and its render() return an array [height, width, 3]"
        ) from None


def wrapped(env: gymnasium.Env[Any, Any], wrappers: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment in the wrappers that the import paths name, the first one innermost."""
    for path in wrappers:
        wrapper = import_path(path, "the wrapper")
        try:
            env = wrapper(env)
        except Exception as error:
            raise ConfigError(f"the wrapper '{path}' failed: {type(error).__name__}: {error}") from error
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"the wrapper '{path}' gave {type(env).__name__}, which is not a Gymnasium environment")
    return env


@dataclass(frozen=True)
class EnvMaker:
    """Makes one environment of a registered task; in a worker process, imports the task's module first."""

    task: str
    kwargs: Mapping[str, Any]
    wrappers: tuple[str, ...] = ()

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return wrapped(make_single(self.task, self.kwargs), self.wrappers)


def spec_of(env: gymnasium.Env[Any, Any], config: EnvConfig) -> EnvSpec:
    """Return the spaces and time limit of an environment."""
    return EnvSpec(
        observation_spec(env.observation_space),
        action_spec(env.action_space, config.action_low, config.action_high),
        None if env.spec is None else env.spec.max_episode_steps,
    )


def env_spec(make: Callable[[], gymnasium.Env[Any, Any]], config: EnvConfig) -> EnvSpec:
    """Return spaces and time limit, read from an environment that is made and closed again."""
    env = make()
    try:
        return spec_of(env, config)
    finally:
        env.close()


class _AdaptedEnv(gymnasium.Wrapper[NDArray[np.float32], Any, Any, Any]):
    """One of several environments: its observation becomes a state vector, and its errors name its index.

    Its info holds only the finished `Episode` (vectorizing every step's info costs more than a small simulator, casts
    floats to the type that another environment returned first, and fails on arrays of varying shape).
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, observation: ObservationSpec) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observation.size,), np.float32)
        self._name = f"environment {index}" + ("" if env.spec is None else f" ({env.spec.id})")
        self._index = index
        self._observation = observation
        self._begin_episode()

    def _begin_episode(self) -> None:
        self._total_reward, self._length, self._success = 0.0, 0, None

    _success: float | None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._begin_episode()
        with self._errors_named("reset"):
            raw, _ = self.env.reset(seed=seed, options=options)
            return self._state(raw), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        with self._errors_named("step"):
            raw, reward, terminated, truncated, info = self.env.step(action)
            state, reward = self._state(raw), float(reward)
        self._total_reward += reward
        self._length += 1
        now = next((float(info[key]) for key in ("success", "is_success") if key in info), None)
        if now is not None:
            self._success = max(self._success or 0.0, now)
        if not (terminated or truncated):
            return state, reward, False, False, {}
        scalars = {
            key: float(value)
            for key, value in info.items()
            if isinstance(value, bool | int | float | np.number | np.bool_) and key not in ("success", "is_success")
        }
        # Some environments report success only while it lasts, so no report means no success.
        at_end = None if self._success is None else now or 0.0
        episode = Episode(self._index, self._total_reward, self._length, self._success, scalars, at_end)
        return state, reward, bool(terminated), bool(truncated), {"episode": episode}

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the environment below this wrapper."""
        set_attributes(self.env, attributes, self._name)

    def _state(self, raw: Any) -> NDArray[np.float32]:
        # Copy: an environment may reuse its array, and the next reset would overwrite the final observation.
        state = np.array(self._observation.state(raw))
        if state.shape != (self._observation.size,):
            raise ValueError(f"the observation has shape {state.shape}, its space says ({self._observation.size},)")
        return state

    @contextlib.contextmanager
    def _errors_named(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"{self._name} failed in {call}(): {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _AdaptedMaker:
    """Makes one adapted environment."""

    make: Callable[[], gymnasium.Env[Any, Any]]
    index: int
    spec: EnvSpec

    def __call__(self) -> _AdaptedEnv:
        return _AdaptedEnv(self.make(), self.index, self.spec.observation)


@dataclass(frozen=True)
class _WorkerMaker:
    """Makes one environment in the worker process that receives it."""

    maker: _AdaptedMaker

    def __call__(self) -> _WorkerEnv:
        return _WorkerEnv(self.maker(), self.maker.spec.action)


class _WorkerEnv:
    """An environment with the interface of a worker pool: the step that ends an episode begins the next one."""

    def __init__(self, env: _AdaptedEnv, action: ActionSpec) -> None:
        self._env, self._action = env, action

    def reset(self, seed: int) -> Arrays:
        return {"state": self._env.reset(seed=seed)[0]}

    def step(self, action: NDArray[np.float64]) -> SingleStep:
        # An index of () makes a number of an array without dimensions.
        taken = self._action.for_environment(action, self._env.action_space.dtype)[()]
        state, reward, terminated, truncated, info = self._env.step(taken)
        if not (terminated or truncated):
            return SingleStep({"state": state}, reward, False, False)
        first, _ = self._env.reset()
        return SingleStep({"state": first}, reward, terminated, truncated, {"state": state}, info["episode"])

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._env.set_attributes(attributes)

    def close(self) -> None:
        self._env.close()


class GymnasiumEnvs:
    """`num_envs` Gymnasium environments behind Detent's VectorEnv interface."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        config: EnvConfig,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        make: Callable[[], gymnasium.Env[Any, Any]] | None = None,
    ) -> None:
        """Prepare the environments. `autoreset_mode` sets how those in this process are reset and affects only speed:
        SAME_STEP needs no second call when an episode ends. `make` makes one environment, by default of `task`."""
        make = make or EnvMaker(task, config.kwargs, config.wrappers)
        self.spec = env_spec(make, config)
        self.num_envs = num_envs
        self._task, self._mode = task, autoreset_mode
        self._processes = config.processes
        self._makers = [_AdaptedMaker(make, i, self.spec) for i in range(num_envs)]
        self._envs: SyncVectorEnv[Any, Any] | WorkerPool | None = None
        self._attributes: dict[str, Any] = {}

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._set(attributes)
        self._attributes |= attributes

    def _set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the environments that exist."""
        if isinstance(self._envs, WorkerPool):
            self._envs.set_attributes(attributes)
        elif self._envs is not None:
            for env in self._envs.envs:
                assert isinstance(env, _AdaptedEnv)
                env.set_attributes(attributes)

    def reset(self, seed: int) -> Observation:
        self.close()
        # Not seed + i: neighbouring run seeds would share all environments but one.
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        if self._processes:
            makers = [_WorkerMaker(maker) for maker in self._makers]
            self._envs = WorkerPool(self._task, makers, self.num_envs, self.spec, (__name__,))
            self._set(self._attributes)
            return self._envs.reset(seeds)
        self._envs = SyncVectorEnv(self._makers, copy=False, autoreset_mode=self._mode)
        self._set(self._attributes)
        state, _ = self._envs.reset(seed=seeds)
        return _tensors(state)

    def step(self, action: Tensor) -> Step:
        if self._envs is None:
            raise RuntimeError("reset(seed) makes the environments; call it before step()")
        actions = action.detach().cpu().numpy()
        if isinstance(self._envs, WorkerPool):
            return self._envs.step(actions)
        state, reward, terminated, truncated, info = self._envs.step(
            self.spec.action.for_environment(actions, self._envs.single_action_space.dtype)
        )
        ended = terminated | truncated
        final: Observation | None = None
        episodes: tuple[Episode, ...] = ()
        if ended.any():
            rows = np.flatnonzero(ended)
            if self._mode == AutoresetMode.SAME_STEP:
                final_state = np.array(state)
                final_state[rows] = np.stack([info["final_obs"][i] for i in rows])
                finished = info["final_info"]["episode"]
            else:
                # Reset at once, even in NEXT_STEP mode, whose own reset would cost a dummy transition.
                final_state = np.array(state)
                finished = info["episode"]
                state, _ = self._envs.reset(options={"reset_mask": ended})
            final = {"state": torch.from_numpy(final_state)}
            episodes = tuple(finished[i] for i in rows)
        return Step(
            observation=_tensors(state),
            reward=torch.from_numpy(reward.astype(np.float32)),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            final_observation=final,
            episodes=episodes,
        )

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None


def _tensors(state: Any) -> Observation:
    """Copy the state, because Gymnasium reuses its array at every step."""
    return {"state": torch.from_numpy(np.array(state, dtype=np.float32))}


class GymnasiumSimulator(Simulator):
    """Gymnasium environments in this process or in worker processes."""

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        return GymnasiumEnvs(task, num_envs, config)

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        return env_spec(EnvMaker(task, config.kwargs, config.wrappers), config)

    def make_rendering(self, task: str, config: EnvConfig) -> gymnasium.Env[Any, Any]:
        return wrapped(make_rendering(task, config.kwargs), config.wrappers)
