"""The plug-ins that a configuration names: checked before anything is made, and recorded so that the run can load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from detent.algorithms.losses import LOSSES
from detent.algorithms.update_rule import UPDATE_RULES, algorithm_plugin
from detent.config import Config
from detent.config.presets import BASELINES
from detent.envs import simulator_plugin
from detent.errors import ConfigError, nearest
from detent.models.parts import model_plugins
from detent.registry import Reference, allow_imports, import_plugins, providers
from detent.training.loggers import callback_plugins, require_log_options


def named_plugins(config: Config, training: bool = True) -> list[Reference]:
    """Return a reference to everything in a configuration that a registry must know, without importing it.

    Without `training`, leave out what only a training run needs: loggers and callbacks.
    """
    if config.algo in BASELINES:
        algorithm = []
    else:
        registry = LOSSES if LOSSES.known(config.algo) else UPDATE_RULES
        algorithm = [Reference(registry, config.algo, "algo", config.update.options, "update.options")]
    callbacks = callback_plugins(config) if training else []
    return [*model_plugins(config), *algorithm, *simulator_plugin(config.env), *callbacks]


def register_plugins(config: Config) -> None:
    """Import the modules of `config.plugins` and check that every name and option of the configuration is known."""
    import_plugins(config.plugins)
    require_log_options(config)
    for reference in named_plugins(config):
        if reference.setting == "algo":
            _check_algorithm(config)
        else:
            reference.check()


def _check_algorithm(config: Config) -> None:
    if not (LOSSES.known(config.algo) or UPDATE_RULES.known(config.algo) or ":" in config.algo):
        names = [*LOSSES.names(), *UPDATE_RULES.names(), *BASELINES]
        raise ConfigError(f"there is no algo '{config.algo}'; {nearest(config.algo, names)}")
    algorithm_plugin(config).check()


def with_providers(config: Config) -> Config:
    """Add the modules whose decorators registered this run's plug-ins, so that another process can load the run."""
    found = [module for module in providers(named_plugins(config)) if module not in config.plugins]
    return replace(config, plugins=(*config.plugins, *found)) if found else config


def unrecorded(config: Config) -> tuple[str, ...]:
    """Return a note on plug-ins that only the running program knows."""
    names = [r.name for r in named_plugins(config) if r.registry.provider(r.name) == "__main__"]
    if not names:
        return ()
    return (f"{', '.join(names)}: registered by the program itself, which must register it again before detent.load.",)


def imports_of(config: Config, training: bool = True) -> set[str]:
    """Return everything that a configuration names for import: plug-in modules and import paths."""
    names = (*(reference.name for reference in named_plugins(config, training)), *_import_paths(config))
    return {name for name in names if ":" in name} | set(config.plugins)


def _import_paths(config: Config) -> list[str]:
    """Return wrappers and the task; a module of Detent's own that registers a task is no risk."""
    return [*config.env.wrappers, *([] if config.task.startswith("detent.") else [config.task])]


def require_trust(config: Config, run: Path, trust: bool, training: bool = True) -> None:
    """Refuse to import what a run's files name unless the user trusts them; with trust, import its plug-in modules."""
    allow_imports(named_plugins(config, training), config.plugins, run, trust, _import_paths(config))
