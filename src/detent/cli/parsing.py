"""Parse command-line words into a command, a dataclass whose fields are its flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from detent.cli.arguments import annotated_settings
from detent.cli.flags import flags_of, given, require_known, spelled
from detent.errors import ConfigError

Command = TypeVar("Command")


def parse(command: type[Command], words: Sequence[str], default: Command | None = None) -> Command:
    """Return the command that `words` give, starting from `default`; `--help` and `--help-all` print and exit."""
    prog = f"detent {command.__name__.lower()}"
    everything = "--help-all" in words
    short = not everything and ("-h" in words or "--help" in words)
    with annotated_settings(short):
        # Not tyro's list of unknown words: it takes an unknown flag for a positional argument if that is missing.
        require_known(words, command, prog)
        parsed: Command
        parsed, unknown = tyro.cli(
            command,
            prog=prog,
            args=["--help" if word == "--help-all" else word for word in words],
            default=tyro.MISSING_NONPROP if default is None else default,
            return_unknown_args=True,
            registry=_whole_numbers(words),
        )
    if unknown:
        raise ConfigError(f"'{unknown[0]}' is one word too many; `{prog} --help` shows what the command takes")
    return parsed


def given_settings(command: type, words: Sequence[str]) -> list[str]:
    """Return the dotted names of the settings that the flags among `words` set."""
    with annotated_settings(short=False):
        flags = flags_of(command)
    return [flags[spelled(flag)] for flag, _ in given(words) if spelled(flag) in flags]


def _whole_numbers(words: Sequence[str]) -> ConstructorRegistry:
    """Return the rule for integers, which may be written 100000, 100_000 or 1e5."""
    registry = ConstructorRegistry()
    flags = Counter(value for _, value in given(words))
    named = {value: flag for flag, value in given(words) if flags[value] == 1}

    def whole_number(texts: list[str]) -> int:
        try:
            return int(texts[0])
        except ValueError:
            pass
        try:
            number = float(texts[0])
        except ValueError:
            number = float("nan")
        if not number.is_integer():
            who = named.get(texts[0], "a number")
            raise ConfigError(f"{who} is {texts[0]}; it must be a whole number, such as 100000 or 1e5")
        return int(number)

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=whole_number,
            is_instance=lambda value: isinstance(value, int),
            str_from_instance=lambda value: [str(value)],
        )

    return registry
