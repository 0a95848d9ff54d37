"""Parse command-line words into a command, a dataclass whose fields are its flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tyro

from detent.cli.arguments import annotate_settings

Command = TypeVar("Command")


def parse(command: type[Command], words: Sequence[str], default: Command | None = None) -> Command:
    annotate_settings()
    prog = f"detent {command.__name__.lower()}"
    if default is None:
        return tyro.cli(command, prog=prog, args=words)
    return tyro.cli(command, prog=prog, args=words, default=default)
