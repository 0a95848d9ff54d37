"""Standard output as it may be: with an encoding that lacks characters, or with a reader that leaves early."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys

PLAIN = {"·": "-", "±": "+-", "²": "^2", "…": "~"}
"""Spellings of the characters that Detent and its tables print and ASCII lacks."""


def _spell(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("detent.plain", _spell)


def spell_out_missing_characters() -> None:
    """Let stdout replace characters that its encoding lacks instead of raising a UnicodeEncodeError."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="detent.plain")


def reader_is_gone() -> bool:
    """Return whether stdout is a pipe that nobody reads any more."""
    watch = select.poll()
    # Even without being asked for, a closed reading end is reported.
    watch.register(sys.stdout, 0)
    return bool(watch.poll(0))


def flush() -> None:
    """Write out what is printed; drop it if nobody reads it, or the interpreter would complain at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
