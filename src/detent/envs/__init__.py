"""Simulators behind one interface: adapters with uniform semantics, and the choice among them.

Imports config and spec, never networks; each simulator's own package is imported only in the file that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detent.config import EnvConfig
from detent.config.presets import MANISKILL_BACKENDS, is_maniskill
from detent.envs.base import AdjustableEnv, DivisibleEnv, EnvFactory, Episode, Simulator, Step, VectorEnv
from detent.errors import ConfigError
from detent.registry import Reference, Registry
from detent.spec import EnvSpec, Observation

if TYPE_CHECKING:
    from gymnasium import Env

__all__ = [
    "SIMULATORS",
    "AdjustableEnv",
    "DivisibleEnv",
    "EnvFactory",
    "Episode",
    "Observation",
    "Simulator",
    "Step",
    "VectorEnv",
    "choose_backend",
    "divide",
    "env_spec",
    "make_envs",
    "make_eval_envs",
    "make_rendering_env",
    "simulator_plugin",
]

FACTORY = "factory"
"""Backend name of environments that a Python callable makes."""

SIMULATORS = Registry(
    "simulator",
    "detent.simulators",
    {
        "envpool": "detent.envs.envpool:EnvPoolSimulator",
        "gymnasium": "detent.envs.gymnasium:GymnasiumSimulator",
        "physx_cpu": "detent.envs.maniskill:ManiSkillOnCPU",
        "physx_cuda": "detent.envs.maniskill:ManiSkillOnGPU",
    },
    base="detent.envs.base:Simulator",
    reserved=("auto", FACTORY),
)
_OWN = (*SIMULATORS.names()[:2], *MANISKILL_BACKENDS)


def simulator_plugin(config: EnvConfig) -> list[Reference]:
    """Return the simulator that a configuration names; empty if Detent chooses or a callable makes the environments."""
    if config.backend in ("auto", FACTORY):
        return []
    return [Reference(SIMULATORS, config.backend, "env.backend", config.options, "env.options")]


def choose_backend(task: str, config: EnvConfig, device: str = "auto") -> str:
    """Return the simulator of a task: the requested one, or EnvPool if it simulates the task exactly as Gymnasium does
    and no setting requires Gymnasium; for a ManiSkill task, the one that matches the device."""
    if config.backend not in ("auto", *_OWN):
        return config.backend
    if is_maniskill(task, config.backend):
        return _choose_physx(task, config, device)
    if config.backend in MANISKILL_BACKENDS:
        raise ConfigError(f"{task} is not a ManiSkill task, and env.backend is {config.backend}; leave it out")
    if config.obs != "state":
        raise ConfigError(f"env.obs is {config.obs}; only ManiSkill tasks have images, and {task} is not one")
    from detent.envs import envpool

    if config.backend == "auto":
        plain = not config.processes and not config.wrappers
        return "envpool" if plain and envpool.available(task, config.kwargs) else "gymnasium"
    if config.backend == "envpool":
        for name in ("processes", "wrappers"):
            if getattr(config, name):
                raise ConfigError(
                    f"env.{name} is for Gymnasium's environments, and env.backend is envpool; leave one out"
                )
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


def _choose_physx(task: str, config: EnvConfig, device: str) -> str:
    if config.processes:
        raise ConfigError("env.processes is for Gymnasium only; ManiSkill always simulates in processes of its own")
    if config.wrappers:
        raise ConfigError("env.wrappers is for Gymnasium's environments, not for ManiSkill's; leave it out")
    if config.backend == "auto":
        import torch

        with_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
        return "physx_cuda" if with_gpu else "physx_cpu"
    if config.backend not in MANISKILL_BACKENDS:
        raise ConfigError(
            f"{task} is a ManiSkill task, and env.backend is {config.backend}; valid: auto, "
            f"{', '.join(MANISKILL_BACKENDS)}"
        )
    return config.backend


def _simulator(task: str, config: EnvConfig, factory: EnvFactory | None) -> Simulator:
    if factory is not None:
        from detent.envs.factory import FactorySimulator

        return FactorySimulator(factory)
    if config.backend == FACTORY:
        raise ConfigError(
            f"the environments of {task} were made by a Python callable; give it again: env=..., in Python"
        )
    backend = choose_backend(task, config)
    simulator: Simulator = SIMULATORS.make(backend, options=config.options, setting="env.options")
    return simulator


def make_envs(
    task: str, config: EnvConfig, num_envs: int, threads: int, factory: EnvFactory | None = None
) -> VectorEnv:
    """Make `num_envs` environments, which may differ from `config.num_envs`; `reset(seed)` starts them."""
    return _simulator(task, config, factory).make(task, config, num_envs, threads)


def make_eval_envs(
    task: str, config: EnvConfig, num_envs: int, threads: int, factory: EnvFactory | None = None
) -> VectorEnv:
    """Make environments for evaluation, in as few processes as possible, where every episode runs to its end."""
    return make_envs(task, replace(config, processes=False, partial_resets=False), num_envs, threads, factory)


def env_spec(task: str, config: EnvConfig, factory: EnvFactory | None = None) -> EnvSpec:
    """Return a task's spaces and time limit; reject what cannot be made or learned from before training starts."""
    return _simulator(task, config, factory).spec(task, config)


def make_rendering_env(task: str, config: EnvConfig) -> Env[Any, Any]:
    """Make one environment that renders images."""
    return _simulator(task, config, None).make_rendering(task, config)


def divide(envs: VectorEnv, parts: Sequence[slice], threads: int) -> list[VectorEnv]:
    """Divide environments into parts for separate processes, which share `threads`; close the undivided ones."""
    if len(parts) == 1:
        return [envs]
    assert isinstance(envs, DivisibleEnv)
    envs.close()
    return [envs.part(rows, max(1, threads // len(parts))) for rows in parts]
