"""Configurations as nested dicts and TOML files, and changes to them."""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import tomli_w

from detent.config.schema import Config
from detent.errors import ConfigError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")

RENAMED = {"trpo.backtracks": "trpo.max_backtracks", "trpo.shrink": "trpo.backtrack_coef"}
"""Old names of settings; files that use them can still be read, and run ids are still computed from them."""


def current_settings(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Translate settings, given by dotted name, to their current names."""
    return {RENAMED.get(key, key): value for key, value in flat.items()}


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a config section to plain nested dicts, lists and scalars, ready for TOML."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out[f.name] = to_dict(value)
        else:
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def override(section: Section, changes: Mapping[str, Any], where: str = "") -> Section:
    """Return `section` with nested `changes`; unknown keys and wrong types raise errors that name the valid ones."""
    hints = _type_hints(type(section))
    values: dict[str, Any] = {}
    for key, value in changes.items():
        path = f"{where}{key}"
        if path in RENAMED:
            path = RENAMED[path]
            key = path.rpartition(".")[2]
        if key not in hints:
            raise ConfigError(f"unknown setting '{path}'; {nearest(key, hints)}")
        current = getattr(section, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            if not isinstance(value, Mapping):
                raise ConfigError(f"'{path}' is a group of settings, not a value; found {value!r}")
            values[key] = override(current, value, f"{path}.")
        else:
            values[key] = _coerce(hints[key], value, path)
    return dataclasses.replace(section, **values)


@cache
def _type_hints(section: type) -> dict[str, Any]:
    """Return a section's type hints, cached because resolving them dominates the time to make a configuration."""
    return typing.get_type_hints(section)


def _coerce(hint: Any, value: Any, path: str) -> Any:
    """Convert `value` from TOML or Python to the field's type, or raise an error that says what the field takes."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{path} is {value!r}; {nearest(str(value), map(str, get_args(hint)))}")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(get_args(hint)[0], item, path) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    allowed = get_args(hint) if origin is types.UnionType else (hint,)
    if type(value) in allowed:
        return value
    if float in allowed and type(value) is int:
        return float(value)
    if int in allowed and type(value) is float and value.is_integer():
        # `steps = 1e5`, which TOML and Python read as a float.
        return int(value)
    names = {tuple: "a list", dict: "a table"}.get(origin) or " or ".join(t.__name__ for t in allowed)
    raise ConfigError(f"{path} is {value!r}; it must be {names}")


def save_config(config: Config, path: Path) -> None:
    """Write the configuration atomically, because a run cannot be resumed without it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(tomli_w.dumps(to_dict(config)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def load_config(path: Path) -> Config:
    """Load a complete configuration as written by `save_config`."""
    return override(Config(), read_toml(path))


def read_run_config(run: Path) -> Config:
    """Read the configuration of the run in directory `run`."""
    if not (run / "config.toml").exists():
        raise ConfigError(f"{run} is not a run directory: it has no config.toml")
    return load_config(run / "config.toml")
