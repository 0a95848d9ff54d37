"""Colours of the variants: the paper's (RN-D purple, RN-C blue, MLP-D green, MLP-C orange), others after them."""

from __future__ import annotations

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
}
"""The same variants on a dark page."""

_OTHERS = ["#00798c", "#997404", "#d1495b", "#3d5a80", "#588157", "#a05195", "#9c6644", "#6d597a"]
_OTHERS_DARK = ["#53c3d4", "#e6c35c", "#f28b97", "#98b6dd", "#a3c99f", "#e29fd6", "#d8ab8a", "#c3a9d1"]


def colors(groups: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour of each group on a light and on a dark page."""
    out: dict[str, tuple[str, str]] = {}
    others = 0
    for group in groups:
        if group in COLORS:
            out[group] = COLORS[group], DARK[group]
        else:
            out[group] = _OTHERS[others % len(_OTHERS)], _OTHERS_DARK[others % len(_OTHERS)]
            others += 1
    return out
