"""EnvPool: Gymnasium's MuJoCo tasks simulated by C++ threads."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detent.config import EnvConfig
from detent.envs.base import Episode, Simulator, Step, VectorEnv
from detent.envs.spaces import action_spec, observation_spec
from detent.errors import ConfigError
from detent.spec import EnvSpec, Observation
from detent.threads import core_numbers

# EnvPool lists more than 1600 ids; these were compared with Gymnasium's tasks of the same name, step by step.
_NAMES = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
TASKS = frozenset(f"{name}-{version}" for name in _NAMES for version in ("v4", "v5"))

_SHARED_KWARGS = frozenset(
    {
        "ctrl_cost_weight",
        "exclude_current_positions_from_observation",
        "forward_reward_weight",
        "healthy_reward",
        "max_episode_steps",
        "reset_noise_scale",
        "terminate_when_unhealthy",
    }
)
"""Constructor arguments that have the same name and meaning in Gymnasium and EnvPool."""

_NEVER = 2**31 - 1


def installed() -> bool:
    return importlib.util.find_spec("envpool") is not None


def available(task: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether EnvPool simulates this task with these arguments exactly as Gymnasium does."""
    if task not in TASKS or not installed():
        return False
    if not kwargs:
        return True
    import envpool

    limit = kwargs.get("max_episode_steps", 1)
    known = _SHARED_KWARGS & set(envpool.make_spec(task).config._fields)
    return set(kwargs) <= known and isinstance(limit, int) and limit >= 1


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """Return a task's spaces and time limit without making an environment."""
    import envpool

    with _refusals_named(task, config.kwargs):
        pool = envpool.make_spec(task, **config.kwargs)
    return EnvSpec(
        observation_spec(pool.gymnasium_observation_space),
        action_spec(pool.gymnasium_action_space, config.action_low, config.action_high),
        int(pool.config.max_episode_steps),
    )


@contextlib.contextmanager
def _refusals_named(task: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(f"EnvPool cannot make {task} with env.kwargs {dict(kwargs)}: {error}") from error


def first_core(threads: int) -> int:
    """Return the core to pin EnvPool's first thread to, with the others on the cores that follow; -1 pins none.

    Threads that sleep between steps tend to wake up on the same core. If there are as many threads as cores that this
    process may use, each gets its own core; if there are fewer, the spare cores may serve other runs.
    """
    cores = core_numbers()
    return cores[0] if cores == list(range(cores[0], cores[0] + threads)) else -1


class EnvPoolEnvs:
    """`num_envs` EnvPool environments behind Detent's VectorEnv interface."""

    def __init__(self, task: str, num_envs: int, config: EnvConfig, num_threads: int = 0) -> None:
        """Prepare the environments; `num_threads` 0 lets EnvPool choose."""
        self.num_envs = num_envs
        # The numbers of these environments, and how many draw their seeds together.
        self._numbers, self._of = range(num_envs), num_envs
        self._task = task
        self._threads = min(num_threads, num_envs)
        self._kwargs = dict(config.kwargs)
        self.spec = env_spec(task, config)
        self._limit = self.spec.max_episode_steps
        self._low, self._high = np.asarray(self.spec.action.low), np.asarray(self.spec.action.high)
        self._pool: Any = None

    def part(self, rows: slice, threads: int) -> EnvPoolEnvs:
        """Return the environments `rows`, with unchanged seeds and numbers, stepped by `threads` of their own."""
        part = copy.copy(self)
        part._numbers = self._numbers[rows]
        part.num_envs, part._threads, part._pool = len(part._numbers), min(threads, len(part._numbers)), None
        return part

    def _make(self, seeds: list[int]) -> Any:
        import envpool

        arguments = {
            **self._kwargs,
            # EnvPool reports a fall in the very last step as a truncation; `step` applies the limit, keeping both.
            "max_episode_steps": _NEVER,
            # Contact forces in the -v4 observations, as Gymnasium computes them; EnvPool would leave them zero.
            "post_constraint": True,
        }
        with _refusals_named(self._task, self._kwargs):
            return envpool.make(
                self._task,
                env_type="gymnasium",
                num_envs=self.num_envs,
                num_threads=self._threads,
                # A part's threads stay on the cores of its process.
                thread_affinity_offset=first_core(self._threads) if self.num_envs == self._of else -1,
                seed=seeds,
                **arguments,
            )

    def reset(self, seed: int) -> Observation:
        self.close()
        # One 31-bit seed per environment; from a single seed EnvPool derives seed + i, which run seeds would share.
        seeds = np.random.SeedSequence(seed).generate_state(self._of) >> 1
        self._pool = self._make(seeds[list(self._numbers)].tolist())
        self._total_reward = np.zeros(self.num_envs)
        raw, info = self._pool.reset()
        return {"state": torch.from_numpy(self._in_order(raw, info, np.float32))}

    def step(self, action: Tensor) -> Step:
        if self._pool is None:
            raise RuntimeError("reset(seed) makes the environments; call it before step()")
        clipped = np.clip(action.detach().cpu().numpy().astype(np.float64), self._low, self._high)
        raw, raw_reward, raw_terminated, _, info = self._pool.step(clipped)
        state = self._in_order(raw, info, np.float32)
        reward = self._in_order(raw_reward, info, np.float32)
        terminated = self._in_order(raw_terminated, info, np.bool_)
        length = self._in_order(info["elapsed_step"], info, np.int64)
        truncated = length >= self._limit
        self._total_reward += reward
        ended = terminated | truncated
        final: Observation | None = None
        episodes: tuple[Episode, ...] = ()
        if ended.any():
            rows = np.flatnonzero(ended)
            final = {"state": torch.from_numpy(state)}
            episodes = self._finished(rows, length, info)
            state = state.copy()
            first, first_info = self._pool.reset(rows.astype(np.int32))
            state[first_info["env_id"]] = first
            self._total_reward[rows] = 0.0
        return Step(
            observation={"state": torch.from_numpy(state)},
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            final_observation=final,
            episodes=episodes,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _in_order(self, values: NDArray[Any], info: dict[str, Any], dtype: type[np.generic]) -> NDArray[Any]:
        """Return a copy of `values` with row i for environment i."""
        out = np.empty(values.shape, dtype)
        out[info["env_id"]] = values
        return out

    def _finished(self, rows: NDArray[np.intp], length: NDArray[Any], info: dict[str, Any]) -> tuple[Episode, ...]:
        scalars = {
            key: self._in_order(value, info, np.float64)
            for key, value in info.items()
            if isinstance(value, np.ndarray) and value.ndim == 1 and key not in ("env_id", "elapsed_step")
        }
        return tuple(
            Episode(
                env=self._numbers[i],
                total_reward=float(self._total_reward[i]),
                length=int(length[i]),
                info={key: float(value[i]) for key, value in scalars.items()},
            )
            for i in rows
        )


class EnvPoolSimulator(Simulator):
    """EnvPool: Gymnasium's MuJoCo tasks simulated by C++ threads."""

    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        return EnvPoolEnvs(task, num_envs, config, threads)

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        return env_spec(task, config)

    def make_rendering(self, task: str, config: EnvConfig) -> gymnasium.Env[Any, Any]:
        from detent.envs.gymnasium import make_single

        return make_single(task, config.kwargs, render_mode="rgb_array")
