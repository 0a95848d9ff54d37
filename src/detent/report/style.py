"""Colours of the variants: the paper's (RN-D purple, RN-C blue, MLP-D green, MLP-C orange) and, for each other variant,
one that stays the same in every report; groups with further settings take what is left."""

from __future__ import annotations

import re
from collections.abc import Iterable

COLORS = {
    "rn-d": "#7a3fb0",
    "rn-c": "#2b6cb0",
    "mlp-d": "#2f855a",
    "mlp-c": "#cf6a12",
    "loss-swap": "#b83268",
    "plain-d": "#8a6d3b",
    "residual-d": "#0f8b8d",
    "layernorm-d": "#5a6acf",
    "td3": "#4a5568",
    "bang-bang": "#9a9a9a",
    "bang-off-bang": "#5f6b2d",
    "rn-ordinal": "#d1303f",
    "rn-unimodal": "#e08bb4",
    "rn-smooth": "#3fa34d",
    "rn-coarse-fine": "#c79a00",
    "rn-beta": "#7a4a2b",
    "rn-squashed": "#33b5c9",
    "simba-d": "#d1495b",
    "simba-v2-d": "#00798c",
    "bronet-d": "#997404",
}
DARK = {
    "rn-d": "#b794f6",
    "rn-c": "#63b3ed",
    "mlp-d": "#68d391",
    "mlp-c": "#f6ad55",
    "loss-swap": "#f687b3",
    "plain-d": "#d6b37a",
    "residual-d": "#4fd1c5",
    "layernorm-d": "#a3bffa",
    "td3": "#cbd5e0",
    "bang-bang": "#b5b5b5",
    "bang-off-bang": "#bcc978",
    "rn-ordinal": "#ff7c86",
    "rn-unimodal": "#f9c0da",
    "rn-smooth": "#8fe39b",
    "rn-coarse-fine": "#f2d15c",
    "rn-beta": "#cf9d7c",
    "rn-squashed": "#7fe0ee",
    "simba-d": "#f28b97",
    "simba-v2-d": "#53c3d4",
    "bronet-d": "#e6c35c",
}
"""The same variants on a dark page."""

_SWEPT = re.compile(r"(.+ · width) (\d+)")
_OTHERS = ["#00798c", "#997404", "#d1495b", "#3d5a80", "#588157", "#a05195", "#9c6644", "#6d597a"]
_OTHERS_DARK = ["#53c3d4", "#e6c35c", "#f28b97", "#98b6dd", "#a3c99f", "#e29fd6", "#d8ab8a", "#c3a9d1"]


_RAMP, _RAMP_DARK = ("#dd9c2b", "#c8455f", "#4a1a6b"), ("#fbe3a0", "#f58a8f", "#9a86f0")
"""Ends and middle of the colours of a sweep, from its lowest value to its highest."""


def colors(groups: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour of each group on a light and on a dark page; points of a sweep are shades in order of value."""
    groups = list(groups)
    sweeps: dict[str, list[int]] = {}
    for group in groups:
        if (point := _SWEPT.fullmatch(group)) is not None:
            sweeps.setdefault(point[1], []).append(int(point[2]))
    out: dict[str, tuple[str, str]] = {}
    others = 0
    for group in groups:
        point = _SWEPT.fullmatch(group)
        if group in COLORS:
            out[group] = COLORS[group], DARK[group]
        elif point is not None and len(values := sorted(sweeps[point[1]])) > 1:
            share = values.index(int(point[2])) / (len(values) - 1)
            out[group] = _shade(_RAMP, share), _shade(_RAMP_DARK, share)
        else:
            out[group] = _OTHERS[others % len(_OTHERS)], _OTHERS_DARK[others % len(_OTHERS)]
            others += 1
    return out


def _shade(ramp: tuple[str, str, str], share: float) -> str:
    """Return the colour at `share` of the way along a ramp."""
    low, high = (ramp[0], ramp[1]) if share < 0.5 else (ramp[1], ramp[2])
    part = 2 * share - (share >= 0.5)
    mixed = (round(int(low[i : i + 2], 16) * (1 - part) + int(high[i : i + 2], 16) * part) for i in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
