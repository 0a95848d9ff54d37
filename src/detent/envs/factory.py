"""Environments that a Python callable makes: single Gymnasium environments, or a Gymnasium `VectorEnv`."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from detent.config import EnvConfig
from detent.envs.base import EnvFactory, Episode, Simulator, Step, VectorEnv
from detent.envs.gymnasium import GymnasiumEnvs, spec_of, wrapped
from detent.envs.spaces import action_spec, observation_spec
from detent.errors import ConfigError
from detent.spec import EnvSpec, Observation

SUCCESS = ("success", "is_success")


class FactorySimulator(Simulator):
    """Environments made by a Python callable."""

    def __init__(self, factory: EnvFactory) -> None:
        if not callable(factory):
            name = type(factory).__name__
            raise ConfigError(
                f"env= takes a callable that makes an environment, not {name} itself; for instance env={name}"
            )
        self._factory = factory

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        made = self._call(num_envs)
        if isinstance(made, gymnasium.vector.VectorEnv):
            return VectorFactoryEnvs(self._call, made, config, num_envs)
        made.close()
        if config.processes:
            self._require_picklable()
        return GymnasiumEnvs(task, num_envs, config, make=_SingleMaker(self._factory, config.wrappers))

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        made = self._call(config.num_envs)
        try:
            if isinstance(made, gymnasium.vector.VectorEnv):
                return _vector_spec(made, config)
            return spec_of(wrapped(made, config.wrappers), config)
        finally:
            made.close()

    def _call(self, num_envs: int) -> Any:
        """Call the factory and check that it returns an environment."""
        try:
            arguments = {"num_envs": num_envs} if _takes_num_envs(self._factory) else {}
            made = self._factory(**arguments)
        except Exception as error:
            raise ConfigError(f"the environment factory failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, gymnasium.Env | gymnasium.vector.VectorEnv):
            raise ConfigError(
                f"the environment factory returned {type(made).__name__}; it must return a gymnasium.Env or a "
                "gymnasium.vector.VectorEnv"
            )
        return made

    def _require_picklable(self) -> None:
        try:
            pickle.dumps(self._factory)
        except Exception as error:
            raise ConfigError(
                "env.processes sends the environment factory to worker processes, and this one cannot be pickled "
                f"({error}); use a module-level function"
            ) from None


def _takes_num_envs(factory: EnvFactory) -> bool:
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


class _SingleMaker:
    """Makes one wrapped environment; can be sent to a worker process if the factory can."""

    def __init__(self, factory: EnvFactory, wrappers: tuple[str, ...]) -> None:
        self._factory, self._wrappers = factory, wrappers

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return wrapped(self._factory(), self._wrappers)


def _vector_spec(envs: Any, config: EnvConfig) -> EnvSpec:
    if config.wrappers or config.processes:
        raise ConfigError("env.wrappers and env.processes are for single environments; the factory makes a VectorEnv")
    limit = None if envs.spec is None else envs.spec.max_episode_steps
    return EnvSpec(
        observation_spec(envs.single_observation_space),
        action_spec(envs.single_action_space, config.action_low, config.action_high),
        limit,
    )


class VectorFactoryEnvs:
    """A Gymnasium `VectorEnv` behind Detent's interface: the same real transitions in all three autoreset modes."""

    def __init__(self, make: Any, made: Any, config: EnvConfig, num_envs: int) -> None:
        """Adapt `made`, the first vector environment that `make` returned; the first reset uses it."""
        self.spec = _vector_spec(made, config)
        self.num_envs: int = made.num_envs
        if num_envs != self.num_envs and num_envs == config.num_envs:
            made.close()
            raise ConfigError(
                f"the environment factory makes {self.num_envs} environments, and env.num_envs is {num_envs}; set "
                "it to the same, or let the factory take num_envs"
            )
        self._make, self._envs, self._fresh = make, made, True
        self._mode = self._autoreset_mode()
        self._attributes: dict[str, Any] = {}

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._set(attributes)
        self._attributes |= attributes

    def _set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes by Gymnasium's `set_attr`, or of the vector environment itself if it has none."""
        envs = self._envs.unwrapped
        vectorized = isinstance(envs, SyncVectorEnv | AsyncVectorEnv)
        for name in attributes:
            try:
                envs.get_attr(name) if vectorized else getattr(envs, name)
            except AttributeError:
                who = "the environments have" if vectorized else f"the vector environment {type(envs).__name__} has"
                raise RuntimeError(f"{who} no attribute '{name}' to set") from None
        for name, value in attributes.items():
            if vectorized:
                envs.set_attr(name, [copy.deepcopy(value) for _ in range(self.num_envs)])
            else:
                setattr(envs, name, copy.deepcopy(value))

    def _autoreset_mode(self) -> AutoresetMode:
        mode = self._envs.metadata.get("autoreset_mode")
        masked = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        if not isinstance(mode, AutoresetMode) or (mode == AutoresetMode.NEXT_STEP and not masked):
            name = type(self._envs.unwrapped).__name__
            self._envs.close()
            said = "does not declare its autoreset_mode" if mode is None else f"has autoreset_mode {mode}"
            raise ConfigError(
                f"the vector environment {name} {said}; Detent takes SAME_STEP and DISABLED, and NEXT_STEP of "
                "Gymnasium's own SyncVectorEnv and AsyncVectorEnv"
            )
        return mode

    def reset(self, seed: int) -> Observation:
        if not self._fresh:
            self._envs.close()
            self._envs = self._make(self.num_envs)
            self._set(self._attributes)
        self._fresh = False
        self._total_reward, self._length = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._success: NDArray[np.float64] = np.full(self.num_envs, np.nan)
        # Gymnasium's own vectors take a seed for each environment, others one for all.
        many = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        raw, _ = self._envs.reset(seed=seeds if many else seeds[0])
        return self._tensors(raw)

    def step(self, action: Tensor) -> Step:
        raw, raw_reward, terminated, truncated, info = self._envs.step(
            self.spec.action.for_environment(action.detach().cpu().numpy(), self._envs.single_action_space.dtype)
        )
        reward = np.asarray(raw_reward, dtype=np.float32)
        terminated, truncated = np.array(terminated, dtype=bool), np.array(truncated, dtype=bool)
        ended = terminated | truncated
        self._total_reward += reward
        self._length += 1
        same_step = self._mode == AutoresetMode.SAME_STEP
        at_end = self._read_success(info, ended, same_step)
        state = self._tensors(raw)
        final: Observation | None = None
        episodes: tuple[Episode, ...] = ()
        if ended.any():
            final = {"state": state["state"].clone()}
            if same_step:
                for row in np.flatnonzero(ended):
                    final["state"][row] = torch.from_numpy(self.spec.observation.state(info["final_obs"][row]))
            else:
                # Reset at once, even in NEXT_STEP mode, whose own reset would cost a dummy transition.
                raw, _ = self._envs.reset(options={"reset_mask": ended})
                state = self._tensors(raw)
            episodes = tuple(self._finish(int(row), at_end[row]) for row in np.flatnonzero(ended))
        return Step(
            observation=state,
            reward=torch.from_numpy(reward.copy()),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            final_observation=final,
            episodes=episodes,
        )

    def _read_success(self, info: Mapping[str, Any], ended: NDArray[np.bool_], same_step: bool) -> NDArray[np.float64]:
        """Record success where it is reported; return this step's, with NaN where nothing is reported."""
        now = np.full(self.num_envs, np.nan)
        sources = [(info, ~ended if same_step else np.ones_like(ended))]
        if same_step and ended.any():
            sources.append((info.get("final_info", {}), ended))
        for source, rows in sources:
            for key in SUCCESS:
                if key in source:
                    said = rows & np.asarray(source.get(f"_{key}", np.ones_like(rows)))
                    now[said] = np.asarray(source[key], dtype=np.float64)[said]
        self._success = np.fmax(self._success, now)
        return now

    def _finish(self, row: int, at_end: float) -> Episode:
        """Return the statistics of the episode that ended in `row`, and reset them for the next one."""
        reported = not np.isnan(self._success[row])
        episode = Episode(
            env=row,
            total_reward=float(self._total_reward[row]),
            length=int(self._length[row]),
            success=float(self._success[row]) if reported else None,
            success_at_end=float(np.nan_to_num(at_end)) if reported else None,
        )
        self._total_reward[row], self._length[row], self._success[row] = 0.0, 0, np.nan
        return episode

    def _tensors(self, raw: Any) -> Observation:
        """Copy the observation, because Gymnasium may reuse its array at every step."""
        return {"state": torch.from_numpy(np.array(self.spec.observation.state(raw)))}

    def close(self) -> None:
        self._envs.close()
