"""Loggers: where a run's rows go besides its own files; plug-ins can add more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from detent.config import Config
from detent.errors import ConfigError
from detent.registry import Reference, Registry

LOGGERS = Registry("logger", "detent.loggers", {"tensorboard": "detent.training.loggers.tensorboard:TensorBoardLogger"})


class Logger(Protocol):
    """Receives a run's rows; made from the run directory, the configuration, the starting step (and its `Options`)."""

    def log(self, name: str, row: Mapping[str, Any]) -> None:
        """Log a row of `metrics` or `evals`; `row["step"]` is the environment step, a missing number is None."""
        ...

    def close(self) -> None: ...


def logger_names(config: Config) -> list[str]:
    return list(dict.fromkeys((*config.log, *(["tensorboard"] if config.tensorboard else []))))


def require_log_options(config: Config) -> None:
    """Refuse options of loggers that the run does not have."""
    names = logger_names(config)
    for name in config.log_options:
        if name not in names:
            raise ConfigError(
                f"log_options has '{name}', which is none of the run's loggers ({', '.join(names) or 'none'})"
            )


def logger_plugins(config: Config) -> list[Reference]:
    """Return the loggers that a configuration names."""
    return [
        Reference(LOGGERS, name, "log", config.log_options.get(name, {}), f"log_options.{name}")
        for name in logger_names(config)
    ]


def make_loggers(path: Path, config: Config, step: int) -> list[Logger]:
    return [
        reference.registry.make(
            reference.name, path, config, step, options=reference.options, setting=reference.options_setting
        )
        for reference in logger_plugins(config)
    ]
