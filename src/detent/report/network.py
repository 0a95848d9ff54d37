"""The paper's network diagram, drawn from the description of an actual policy.

Repeated blocks are drawn once; a line beside a column of boxes is a skip connection; the number in a box is that of its
parameters.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve
from matplotlib.textpath import TextPath

from detent.report.drawing import save
from detent.report.network_layout import HEADING, Box, Frame, Point, arrange, is_tall
from detent.report.style import COLORS

if TYPE_CHECKING:
    # Needs torch, which a drawing does not.
    from detent.models.architecture import Architecture, Layer

HEADLINE, TYPE = 7.5, 7.0
"""Points of headings and of everything else."""
INK, SOFT = "#1a202c", "#4a5568"
_WIDEST = 5.0
"""Inches of the drawing; a wider figure has margins."""
_INSET = 0.05
_COLORS = {"observation": "#0f8b8d", "actor": COLORS["rn-d"], "critic": "#4a5568"}


def draw_network(architecture: Architecture, *paths: Path, width: float, variant: str = "rn-d") -> None:
    """Draw a network for print, `width` inches wide, the actor in its variant's colour."""
    drawn = min(width, _WIDEST) - 0.04
    layout = arrange(architecture, drawn)
    canvas = Canvas(figsize=(width, layout.height), dpi=200)
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.set(xlim=((drawn - width) / 2, (drawn + width) / 2), ylim=(layout.height, 0))
    axes.set_axis_off()
    colors = _COLORS | {"actor": COLORS.get(variant, COLORS["rn-d"])}
    for frame in layout.parts:
        _frame(axes, frame, colors[frame.part], "-")
    for frame in layout.blocks:
        _frame(axes, frame, colors[frame.part], "--")
    for line in layout.lines:
        _arrow(axes, line)
    for box in layout.boxes.values():
        _box(axes, box, colors[box.layer.part])
    save(canvas, "network", paths)


def _frame(axes: Axes, frame: Frame, color: str, style: str) -> None:
    _rectangle(axes, frame.left, frame.top, frame.right, frame.bottom, color, 0.06, style)
    middle = frame.top + HEADING / 2 + 0.01
    # A block has only a note, to the right of the arrow that leads into it.
    room = frame.right - frame.left
    note = _shortened(frame.note, room - 3 * _INSET - _inches(frame.title) * 1.2 if frame.title else room / 2 - _INSET)
    axes.text(frame.left + _INSET, middle, frame.title, va="center", fontsize=HEADLINE, color=INK, weight="bold")
    axes.text(frame.right - _INSET, middle, note, va="center", ha="right", fontsize=TYPE, color=INK)


def _box(axes: Axes, box: Box, color: str) -> None:
    layer, left, right = box.layer, box.x - box.width / 2, box.x + box.width / 2
    if layer.kind == "+":
        _plus(axes, box, color)
        return
    _rectangle(axes, left, box.top, right, box.bottom, color, 0.25 if layer.parameters else 0.0)
    if is_tall(layer):
        high, low = box.top + 0.29 * box.height, box.bottom - 0.27 * box.height
        _line(axes, box, high, _name(layer), f"{layer.parameters:,}" if layer.parameters else "", INK)
        _line(axes, box, low, _shapes(layer), box.activation, SOFT)
    else:
        _line(axes, box, (box.top + box.bottom) / 2, _name(layer), _change(layer), INK)


def _line(axes: Axes, box: Box, y: float, name: str, note: str, color: str) -> None:
    """Write a line of a box: a name on the left, shortened if need be, and a note on the right."""
    room = box.width - 2 * _INSET - (_inches(note) + _INSET if note else 0)
    for text, side, align in ((_shortened(name, room), -1, "left"), (note, 1, "right")):
        x = box.x + side * (box.width / 2 - _INSET)
        axes.text(x, y, text, ha=align, va="center_baseline", fontsize=TYPE, color=color)


def _plus(axes: Axes, box: Box, color: str) -> None:
    radius, y = box.height / 2, box.top + box.height / 2
    axes.add_patch(Circle((box.x, y), radius, facecolor="white", edgecolor=color, linewidth=0.6))
    arm = 0.55 * radius
    for x, height in (([box.x - arm, box.x + arm], [y, y]), ([box.x, box.x], [y - arm, y + arm])):
        axes.plot(x, height, color=INK, linewidth=0.8, solid_capstyle="butt")


def _name(layer: Layer) -> str:
    """Return what is written in a layer's box: torch's names as they are, the policy's own as words."""
    if layer.name in ("normalizer", "head", "critic_head"):
        return re.sub(r"(?<=[a-z])[A-Z]", lambda letter: f" {letter[0].lower()}", layer.kind)
    return f"{layer.kind} {layer.detail}".rstrip()


def _shapes(layer: Layer) -> str:
    if layer.name == "head":
        # One distribution per action dimension.
        return f"{layer.outputs[0]} × {layer.detail}"
    if layer.inputs == layer.outputs and "Norm" in layer.kind:
        return _size(layer.outputs)
    if len(layer.outputs) > 1:
        # Images: where they come from is in the box above.
        return f"→ {_size(layer.outputs)}"
    return f"{_size(layer.inputs)} → {_size(layer.outputs)}"


def _change(layer: Layer) -> str:
    """Return the shape a layer without parameters gives, if it is another than it takes."""
    return _size(layer.outputs) if layer.inputs != layer.outputs and layer.outputs else ""


def _size(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"


def _inches(text: str) -> float:
    """Return the width of text."""
    return float(TextPath((0, 0), text, size=TYPE).get_extents().width) / 72 if text else 0.0


def _shortened(text: str, inches: float) -> str:
    if _inches(text) <= inches:
        return text
    shorter = text
    while len(shorter) > 1 and _inches(f"{shorter}…") > inches:
        shorter = shorter[:-1]
    return f"{shorter}…"


def _rectangle(
    axes: Axes,
    left: float,
    top: float,
    right: float,
    bottom: float,
    color: str,
    fill: float,
    style: str = "-",
) -> None:
    shape = "round,pad=0,rounding_size=0.03"
    place, size = (left, top), (right - left, bottom - top)
    # Transparent colours print badly in places: mixed with white instead.
    mixed = tuple(1 - fill + fill * int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    axes.add_patch(
        FancyBboxPatch(place, *size, boxstyle=shape, facecolor=mixed, edgecolor=color, linestyle=style, linewidth=0.6)
    )


def _arrow(axes: Axes, line: list[Point]) -> None:
    path = Curve(line)
    axes.add_patch(
        FancyArrowPatch(
            path=path, arrowstyle="-|>,head_length=1.6,head_width=1.1", color=INK, linewidth=0.7, shrinkA=0, shrinkB=0
        )
    )
