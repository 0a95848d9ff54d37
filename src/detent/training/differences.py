"""What keeps a policy from fitting a run, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detent.config import EncoderConfig, HeadConfig, NetworkConfig
from detent.config.io import to_dict
from detent.spec import EnvSpec


def space_differences(ours: EnvSpec, theirs: EnvSpec) -> Iterator[str]:
    """Yield what differs between the spaces of two environments, in words."""
    here, there = ours.observation, theirs.observation
    if here.size != there.size:
        yield f"observations have {here.size} numbers, not {there.size}"
    elif here.keys != there.keys:
        yield f"observations have the keys {list(here.keys)}, not {list(there.keys)}"
    if here.image != there.image:
        yield f"images are {here.image or 'absent'}, not {there.image or 'absent'}"
    if ours.action.size != theirs.action.size:
        yield f"actions have {ours.action.size} dimensions, not {theirs.action.size}"
    elif ours.action != theirs.action:
        here_bounds, there_bounds = (list(zip(a.low, a.high, strict=True)) for a in (ours.action, theirs.action))
        yield f"action bounds are {here_bounds}, not {there_bounds}"


def setting_differences(ours: NetworkConfig | HeadConfig | EncoderConfig, theirs: Any, section: str) -> Iterator[str]:
    """Yield the settings of a section in which two runs differ."""
    there = to_dict(theirs)
    for key, value in to_dict(ours).items():
        if value != there[key]:
            yield f"{section}.{key} is {value}, not {there[key]}"
