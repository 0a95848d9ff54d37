"""Errors whose message is a sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """A setting, file or space that cannot be used for a run.

    Not a ValueError: tyro would draw its own box around the sentence.
    """


class RunError(RuntimeError):
    """A run directory that cannot be used as asked."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error sentence: the closest valid words, or all of them if none is close."""
    valid = sorted(valid)
    if not valid:
        return "there are none"
    close = difflib.get_close_matches(word, valid, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"valid: {', '.join(valid)}"
