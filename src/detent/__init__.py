"""Detent: on-policy reinforcement learning with discretized categorical actors on regularized networks.

import detent

config = detent.configure("Hopper-v4", preset="fast", overrides={"steps": 100_000})
result = detent.train(config)
policy = detent.load(result.path)
action = policy(observation)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from detent.threads import prepare_threads

if TYPE_CHECKING:
    from detent import report
    from detent.config import Config
    from detent.config.presets import configure
    from detent.envs.base import Simulator
    from detent.errors import ConfigError
    from detent.models.checkpoints import load
    from detent.models.critics.base import CriticHead
    from detent.models.heads.base import Head
    from detent.models.policy import Policy
    from detent.plugins import (
        register_callback,
        register_critic,
        register_encoder,
        register_head,
        register_logger,
        register_loss,
        register_simulator,
        register_trunk,
        register_update_rule,
    )
    from detent.training.callbacks import Callback, RunContext
    from detent.training.evaluate import evaluate_run
    from detent.training.progress import progress
    from detent.training.run import resume, train
    from detent.training.trainer import Result

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Config",
    "ConfigError",
    "CriticHead",
    "Head",
    "Policy",
    "Result",
    "RunContext",
    "Simulator",
    "configure",
    "evaluate_run",
    "load",
    "progress",
    "register_callback",
    "register_critic",
    "register_encoder",
    "register_head",
    "register_logger",
    "register_loss",
    "register_simulator",
    "register_trunk",
    "register_update_rule",
    "report",
    "resume",
    "train",
]

_HOME = {
    "Callback": "training.callbacks",
    "Config": "config",
    "ConfigError": "errors",
    "CriticHead": "models.critics.base",
    "Head": "models.heads.base",
    "Policy": "models.policy",
    "Result": "training.trainer",
    "RunContext": "training.callbacks",
    "Simulator": "envs.base",
    "configure": "config.presets",
    "evaluate_run": "training.evaluate",
    "load": "models.checkpoints",
    "progress": "training.progress",
    "resume": "training.run",
    "train": "training.run",
} | {name: "plugins" for name in __all__ if name.startswith("register_")}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import detent` needs neither torch nor a simulator."""
    if name == "report":
        return import_module("detent.report")
    if name not in _HOME:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    prepare_threads()
    return getattr(import_module(f"detent.{_HOME[name]}"), name)
