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
    from detent.config import Config, ConfigError
    from detent.config.presets import configure
    from detent.models.policy import Policy
    from detent.training.checkpoint import load
    from detent.training.run import resume, train
    from detent.training.trainer import Result

__version__ = "0.1.0"
__all__ = ["Config", "ConfigError", "Policy", "Result", "configure", "load", "report", "resume", "train"]

_HOME = {
    "Config": "config",
    "ConfigError": "config",
    "Policy": "models.policy",
    "Result": "training.trainer",
    "configure": "config.presets",
    "load": "training.checkpoint",
    "resume": "training.run",
    "train": "training.run",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: `import detent` needs neither torch nor a simulator."""
    if name == "report":
        return import_module("detent.report")
    if name not in _HOME:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    prepare_threads()
    return getattr(import_module(f"detent.{_HOME[name]}"), name)
