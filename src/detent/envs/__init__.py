"""Simulators behind one interface; `make_envs` chooses and makes them, and imports only what it chose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from detent.config import ConfigError, EnvConfig
from detent.config.presets import MANISKILL_BACKENDS, is_maniskill
from detent.envs.base import Episode, Step, VectorEnv
from detent.spec import EnvSpec, Observation

if TYPE_CHECKING:
    from gymnasium import Env

__all__ = [
    "Episode",
    "Observation",
    "Step",
    "VectorEnv",
    "choose_backend",
    "make_envs",
    "make_eval_envs",
    "probe",
    "split",
]

Backend = Literal["envpool", "gymnasium", "physx_cpu", "physx_cuda"]


def choose_backend(task: str, config: EnvConfig, device: str = "auto") -> Backend:
    """EnvPool where it has the task just as Gymnasium does and nothing asks for Gymnasium; for a ManiSkill task the
    simulator that goes with the device."""
    if is_maniskill(task, config.backend):
        return _choose_physx(task, config, device)
    if config.backend in MANISKILL_BACKENDS:
        raise ConfigError(f"{task} is no ManiSkill task, and env.backend is {config.backend}; leave it out")
    if config.obs != "state":
        raise ConfigError(f"env.obs is {config.obs}; only ManiSkill's tasks have images, and {task} is none of them")
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


def _choose_physx(task: str, config: EnvConfig, device: str) -> Backend:
    if config.processes:
        raise ConfigError("env.processes is for Gymnasium only; ManiSkill always simulates in processes of its own")
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


def make_eval_envs(task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
    """Environments to evaluate in: in as few processes as the simulator allows, every episode played to its end."""
    return make_envs(task, replace(config, processes=False, partial_resets=False), num_envs, threads)


def make_envs(task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
    """`num_envs` environments (an evaluation may want another number than `config` has); `reset(seed)` starts them."""
    backend = choose_backend(task, config)
    if backend == "physx_cpu":
        from detent.envs.maniskill import ManiSkillPool

        return ManiSkillPool(task, num_envs, config, threads)
    if backend == "physx_cuda":
        from detent.envs.maniskill import ManiSkillBatch

        return ManiSkillBatch(task, num_envs, config)
    if backend == "envpool":
        from detent.envs.envpool import EnvPoolEnvs

        return EnvPoolEnvs(task, num_envs, config, threads)
    from detent.envs.gymnasium import GymnasiumEnvs

    return GymnasiumEnvs(task, num_envs, config)


def split(envs: VectorEnv, parts: list[slice], threads: int) -> list[VectorEnv]:
    """The same environments in parts that processes of their own may step, with `threads` threads between them; what
    steps them all together is closed."""
    if len(parts) == 1:
        return [envs]
    from detent.envs.envpool import EnvPoolEnvs

    assert isinstance(envs, EnvPoolEnvs)
    envs.close()
    return [envs.part(rows, max(1, threads // len(parts))) for rows in parts]


def make_for_film(task: str, config: EnvConfig) -> Env[Any, Any]:
    """One environment that renders pictures."""
    if is_maniskill(task, config.backend):
        from detent.envs.maniskill import make_single

        return make_single(task, config)
    from detent.envs.gymnasium import make_single as make_gymnasium

    return make_gymnasium(task, config.kwargs, render_mode="rgb_array")


def probe(task: str, config: EnvConfig) -> EnvSpec:
    """Spaces and time limit of a task; what cannot be made or learned from is refused here, before training."""
    if is_maniskill(task, config.backend):
        from detent.envs import maniskill

        return maniskill.probe(task, config)
    envs = make_envs(task, config, 1, 1)
    envs.close()
    return envs.spec
