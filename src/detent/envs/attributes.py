"""Attributes of environments that callbacks change during a run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium

from detent.errors import nearest


def set_attributes(env: gymnasium.Env[Any, Any], attributes: Mapping[str, Any], who: str) -> None:
    """Set attributes of an environment or of a wrapper that has them; if one is unknown, raise an error and set none.

    Each environment gets a copy of its own, which it may change.
    """
    for name in attributes:
        if not env.has_wrapper_attr(name):
            known = [key for key in vars(env.unwrapped) if not key.startswith("_")]
            raise RuntimeError(f"{who} has no attribute '{name}' to set; {nearest(name, known)}")
    for name, value in attributes.items():
        env.set_wrapper_attr(name, copy.deepcopy(value))
