"""Callbacks and loggers by name. A logger is a callback that `--log` names; one that fails never stops a run."""

from __future__ import annotations

import warnings

from detent.config import Config
from detent.errors import ConfigError
from detent.registry import Reference, Registry
from detent.training.callbacks import Callback

_BASE = "detent.training.callbacks:Callback"

LOGGERS = Registry(
    "logger",
    "detent.loggers",
    {
        "tensorboard": "detent.training.loggers.tensorboard:TensorBoardLogger",
        "wandb": "detent.training.loggers.wandb:WandbLogger",
    },
    base=_BASE,
)
CALLBACKS = Registry("callback", "detent.callbacks", {}, base=_BASE)


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


def callback_plugins(config: Config) -> list[Reference]:
    """Return the loggers and callbacks that a configuration names."""
    loggers = [
        Reference(LOGGERS, name, "log", config.log_options.get(name, {}), f"log_options.{name}")
        for name in logger_names(config)
    ]
    return [*loggers, *(Reference(CALLBACKS, name, "callbacks", {}, "callbacks") for name in config.callbacks)]


def make_callbacks(config: Config) -> list[Callback]:
    """Make the callbacks that a configuration names."""
    return [_make(reference) for reference in callback_plugins(config) if reference.registry is CALLBACKS]


def make_loggers(config: Config, resuming: bool) -> list[Callback]:
    """Make the loggers of a run. If one cannot be made, a new run is refused; a resumed one continues without it."""
    loggers = []
    for reference in callback_plugins(config):
        if reference.registry is not LOGGERS:
            continue
        try:
            loggers.append(_make(reference))
        except ConfigError as error:
            if not resuming:
                raise
            warnings.warn(f"the run resumes without the logger '{reference.name}': {error}", stacklevel=2)
    return loggers


def _make(reference: Reference) -> Callback:
    registry, name = reference.registry, reference.name
    try:
        callback: Callback = registry.make(name, options=reference.options, setting=reference.options_setting)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the {registry.kind} '{name}' cannot be made: {type(error).__name__}: {error} (it is called without "
            "arguments, or with its Options)"
        ) from error
    return callback


def scalars(row: dict[str, object], prefix: str = "") -> dict[str, float]:
    """Return the numbers in a row by name; those in nested tables are named `table/key`."""
    out: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            out[f"{prefix}{key}"] = value
    return out
