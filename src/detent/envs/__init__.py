"""Simulators behind one interface; `make_envs` chooses and makes them, and imports only what it chose."""

from __future__ import annotations

from typing import Literal

from detent.config import ConfigError, EnvConfig
from detent.envs.base import Episode, Step, VectorEnv
from detent.spaces import EnvSpec, Observation

__all__ = ["Episode", "Observation", "Step", "VectorEnv", "choose_backend", "make_envs", "probe"]


def choose_backend(task: str, config: EnvConfig) -> Literal["envpool", "gymnasium"]:
    """EnvPool where it has the task just as Gymnasium does and nothing asks for Gymnasium."""
    from detent.envs import envpool

    if config.backend == "auto":
        return "envpool" if not config.processes and envpool.available(task, config.kwargs) else "gymnasium"
    if config.backend == "envpool":
        if config.processes:
            raise ConfigError("env.processes is for Gymnasium only, EnvPool has threads; leave one of the two out")
        if not envpool.installed():
            raise ConfigError("env.backend is envpool, which is not installed: pip install envpool")
        if not envpool.available(task, {}):
            raise ConfigError(
                f"EnvPool has no '{task}' that equals Gymnasium's; it has {', '.join(sorted(envpool.TASKS))}. "
                "Use --env.backend gymnasium"
            )
        if not envpool.available(task, config.kwargs):
            raise ConfigError(
                f"EnvPool cannot make {task} with env.kwargs {config.kwargs} as Gymnasium would; "
                "use --env.backend gymnasium"
            )
    return config.backend


def make_envs(task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
    """`num_envs` environments (an evaluation may want another number than `config` has); `reset(seed)` starts them."""
    if choose_backend(task, config) == "envpool":
        from detent.envs.envpool import EnvPoolEnvs

        return EnvPoolEnvs(task, num_envs, config, threads)
    from detent.envs.gymnasium import GymnasiumEnvs

    return GymnasiumEnvs(task, num_envs, config)


def probe(task: str, config: EnvConfig) -> EnvSpec:
    """Spaces and time limit of a task; what cannot be made or learned from is refused here, before training."""
    envs = make_envs(task, config, 1, 1)
    envs.close()
    return envs.spec
