"""What tyro needs to know about settings besides their types: short flags, positional arguments, key=value tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

from tyro.conf import Positional, Suppress, arg
from tyro.constructors import PrimitiveConstructorSpec

from detent.config import (
    ActorConfig,
    Config,
    CriticConfig,
    EncoderConfig,
    EnvConfig,
    HeadConfig,
    TRPOConfig,
    UpdateConfig,
)
from detent.errors import ConfigError


def parse_table(words: list[str], setting: str) -> dict[str, Any]:
    """Parse `key=value` words; a value is read as TOML (numbers, true, [lists]), or as plain text if it is not TOML."""
    out: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals):
            raise ConfigError(f"{setting} takes key=value pairs; found '{word}'")
        try:
            out[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            out[key] = text
    return out


def table(setting: str) -> Any:
    """Return the type of a setting given as `key=value` words."""
    constructor = PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE",
        instance_from_str=partial(parse_table, setting=setting),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda table: [f"{key}={value}" for key, value in table.items()],
    )
    return Annotated[dict[str, Any], constructor]


_NAMES = PrimitiveConstructorSpec(
    nargs="*",
    metavar="NAME",
    instance_from_str=lambda words: tuple(name for word in words for name in word.split(",") if name),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=list,
)
NAMES = Annotated[tuple[str, ...], _NAMES]
"""The type of a setting given as names, with spaces or commas between them."""

ANNOTATIONS: dict[type, dict[str, Any]] = {
    Config: {
        "task": Annotated[Positional[str], arg(metavar="TASK")],
        "log": NAMES,
        "log_options": table("log_options"),
        "callbacks": NAMES,
        "plugins": NAMES,
    },
    EnvConfig: {
        "num_envs": Annotated[int, arg(aliases=["--envs"])],
        "obs": Annotated[Literal["state", "rgb", "rgb+state"], arg(aliases=["--obs"])],
        "kwargs": table("env.kwargs"),
        "options": table("env.options"),
        "action_low": Annotated[tuple[float, ...], arg(aliases=["--action-low"])],
        "action_high": Annotated[tuple[float, ...], arg(aliases=["--action-high"])],
    },
    EncoderConfig: {"options": table("encoder.options")},
    ActorConfig: {"width": Annotated[int, arg(aliases=["--width"])], "options": table("actor.options")},
    CriticConfig: {"options": table("critic.options"), "head_options": table("critic.head_options")},
    HeadConfig: {"bins": Annotated[int, arg(aliases=["--bins"])], "options": table("head.options")},
    UpdateConfig: {"options": table("update.options")},
    # Their names in version 0.1.0.
    TRPOConfig: {
        "max_backtracks": Annotated[int, arg(aliases=["--trpo.backtracks"])],
        "backtrack_coef": Annotated[float, arg(aliases=["--trpo.shrink"])],
    },
}


SHORT_HELP = (
    *("task", "preset", "variant", "algo", "steps", "seed", "threads", "device"),
    *("init_from", "tensorboard", "log", "actor.width", "head.bins", "update.learning_rate", "eval.interval"),
    *(f"env.{name}" for name in ("num_envs", "obs", "kwargs", "wrappers", "action_low", "action_high")),
)
"""Settings that `detent train --help` shows; `--help-all` shows all."""

_HIDE: Any = Suppress


@contextmanager
def annotated_settings(short: bool) -> Iterator[None]:
    """Give tyro's annotations to the configuration classes, which know nothing of the command line; with `short`, hide
    what the short help leaves out."""
    sections: dict[str, type] = {"": Config}
    sections |= {
        f"{name}.": hint
        for name, hint in get_type_hints(Config).items()
        if isinstance(hint, type) and is_dataclass(hint)
    }
    before = {section: section.__annotations__ for section in sections.values()}
    try:
        for prefix, section in sections.items():
            hints = get_type_hints(section, include_extras=True) | ANNOTATIONS.get(section, {})
            if short:
                hints = {name: hint if _shown(f"{prefix}{name}") else _HIDE[hint] for name, hint in hints.items()}
            section.__annotations__ = hints
        yield
    finally:
        for section, annotations in before.items():
            section.__annotations__ = annotations


def _shown(setting: str) -> bool:
    """Return whether the short help shows a setting, or some setting of a section."""
    return any(name == setting or name.startswith(f"{setting}.") for name in SHORT_HELP)
