"""Where the boxes of a network diagram are: inches from the upper left corner, x to the right and y downwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Needs torch, which a drawing does not.
    from detent.models.architecture import Architecture, Group, Layer, Part

TALL, FLAT, GAP = 0.28, 0.16, 0.12
"""Heights of a box of two lines and of one, and the gap between boxes."""
HEADING, PAD, LANE = 0.19, 0.07, 0.15
"""Height of a heading, space inside a frame, and space to the left of a column for skip connections."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    layer: Layer
    x: float
    """Of the middle."""
    top: float
    width: float
    activation: str = ""
    """Kind of the layer after it, if that only transforms each number."""

    @property
    def height(self) -> float:
        return TALL if is_tall(self.layer) else FLAT

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True)
class Frame:
    """A rectangle around boxes, with text in its first line: a part of the policy, or a block."""

    title: str
    note: str
    part: Part
    left: float
    right: float
    top: float
    bottom: float


@dataclass
class Layout:
    """Everything to be drawn. The last point of each line has an arrow head."""

    boxes: dict[int, Box] = field(default_factory=dict)
    parts: list[Frame] = field(default_factory=list)
    blocks: list[Frame] = field(default_factory=list)
    lines: list[list[Point]] = field(default_factory=list)
    height: float = 0.0


def is_tall(layer: Layer) -> bool:
    """Return whether a layer's box has a second line: what has parameters, and the head."""
    return bool(layer.parameters or layer.detail)


def arrange(architecture: Architecture, width: float) -> Layout:
    """Arrange a network in `width` inches: observation and encoder on top, actor and critic below."""
    diagram = _Diagram(architecture)
    layout, half = diagram.layout, width / 2
    sizes = architecture.parameters
    encoder = f"{sizes['encoder']:,} parameters" if sizes["encoder"] else ""
    bottom = diagram.place("observation", "Encoder" if encoder else "Observation", encoder, 0.0, width, 0.02)
    top = bottom + 2 * GAP
    actor, critic = sizes["actor"] + sizes["head"], sizes["critic"]
    gap = PAD / 2
    ends = [
        diagram.place("actor", "Actor", f"{actor:,} parameters", 0.0, half - gap, top),
        diagram.place("critic", "Critic", f"{critic:,} parameters", half + gap, width, top),
    ]
    last = layout.boxes[diagram.shown("observation")[-1]]
    for frame in layout.parts[1:]:
        middle = bottom + GAP
        layout.lines.append([(last.x, last.bottom), (last.x, middle), (_middle(frame), middle), (_middle(frame), top)])
    layout.height = max(ends) + 0.02
    return layout


def _middle(frame: Frame) -> float:
    """Return where the boxes of a frame with one column are."""
    return (frame.left + LANE + frame.right - PAD) / 2


class _Diagram:
    """A network whose repeated blocks are shown once, and its layout so far."""

    def __init__(self, architecture: Architecture) -> None:
        self.layers, self.groups = architecture.layers, architecture.groups
        self.layout = Layout()
        self._same: dict[int, int] = {}
        """Layers that are not shown, and those that stand for them."""
        self._repeats: dict[Group, int] = {}
        """How often a module is repeated that stands for its copies."""
        for group in self.groups:
            if group.first not in self._same:
                self._collapse(group)
        framed = [group for group in self.groups if group in self._repeats or self._skips_into(group)]
        self._blocks = [
            group
            for number, group in enumerate(framed)
            if group.first not in self._same and not any(inner.end <= group.end for inner in framed[number + 1 :])
        ]
        self._activations: dict[int, str] = {}
        """Activations that are shown in the box of the layer before."""
        for index in range(1, len(self.layers)):
            if index not in self._same and self._is_activation(index):
                self._same[index] = index - 1
                self._activations[index - 1] = self.layers[index].kind

    def _collapse(self, group: Group) -> None:
        """Let a module stand for the equal ones that follow it."""
        end = group.end
        while copy := next((other for other in self.groups if other.first == end and self._equal(group, other)), None):
            self._same |= {end + number: group.first + number for number in range(copy.end - end)}
            self._repeats[group] = self._repeats.get(group, 1) + 1
            end = copy.end

    def _equal(self, one: Group, other: Group) -> bool:
        """Return whether two modules of one parent have the same layers, connected in the same way."""

        def content(group: Group) -> list[object]:
            return [
                replace(layer, name="", sources=tuple(source - group.first for source in layer.sources))
                for layer in self.layers[group.first : group.end]
            ]

        return one.name.rpartition(".")[0] == other.name.rpartition(".")[0] and content(one) == content(other)

    def _skips_into(self, group: Group) -> bool:
        """Return whether a layer inside a module takes the module's own input beside what the others make of it."""
        inputs = set(self.layers[group.first].sources)
        return any(
            len(layer.sources) > 1 and inputs & set(layer.sources) for layer in self.layers[group.first + 1 : group.end]
        )

    def _is_activation(self, index: int) -> bool:
        """Return whether a layer transforms each output of the one before, which nothing else takes."""
        layer, before = self.layers[index], self.layers[index - 1]
        readers = [other for other in self.layers if index - 1 in other.sources]
        borders = {border for block in self._blocks for border in (block.first, block.end)}
        return (
            layer.sources == (index - 1,)
            and bool(before.parameters)
            and not layer.parameters
            and layer.part == before.part
            and layer.inputs == layer.outputs == before.outputs
            and readers == [layer]
            and index not in borders
        )

    def shown(self, part: Part) -> list[int]:
        return [index for index, layer in enumerate(self.layers) if layer.part == part and index not in self._same]

    def sources(self, index: int) -> list[int]:
        return [self._shown_as(source) for source in self.layers[index].sources]

    def _shown_as(self, index: int) -> int:
        """Return the layer whose box stands for this one: of the first copy, and of the layer before an activation."""
        while index in self._same:
            index = self._same[index]
        return index

    def rows(self, indices: Sequence[int]) -> list[list[list[int]]]:
        """Return rows of columns of layers: a column is a chain, columns of a row are parallel branches."""
        done: list[list[list[int]]] = []
        branches: list[list[int]] = []
        for index in indices:
            sources = self.sources(index)
            ends = [branch for branch in branches if branch[-1] in sources]
            if len(ends) == 1:
                ends[0].append(index)
            elif ends or not branches:
                done += [branches] if branches else []
                branches = [[index]]
            else:
                fork = next((place for place, one in enumerate(branches[0]) if one in sources), None)
                if fork is not None and len(branches) == 1:
                    done.append([branches[0][: fork + 1]])
                    branches = [branches[0][fork + 1 :]]
                branches.append([index])
        return [*done, branches]

    def place(self, part: Part, title: str, note: str, left: float, right: float, top: float) -> float:
        """Place the layers of a part in a frame; return its lower edge."""
        indices = self.shown(part)
        rows = self.rows(indices)
        y = top + HEADING + PAD / 2
        # Beside the actor's and the critic's columns, one across the whole width would look odd.
        columns = max(2 if part == "observation" else 1, *(len(row) for row in rows))
        width = (right - left) / columns
        for row in rows:
            start = (left + right - len(row) * width) / 2
            ends = [
                self._place_column(column, start + number * width, start + (number + 1) * width, y)
                for number, column in enumerate(row)
            ]
            y = max(ends) + GAP
        bottom = y - GAP + PAD
        self.layout.parts.append(Frame(title, note, part, left, right, top, bottom))
        for column in (column for row in rows for column in row):
            for index in column:
                for source in self.sources(index):
                    self._connect(source, index, column)
        return bottom

    def _place_column(self, column: Sequence[int], left: float, right: float, top: float) -> float:
        """Place a chain of layers; return the lower edge of the last."""
        inner_left, inner_right = left + LANE + PAD, right - 2 * PAD
        starts: dict[int, float] = {}
        y = top
        for index in column:
            for block in self._blocks:
                if block.first == index:
                    starts[index] = y
                    y += HEADING
            middle, width = (inner_left + inner_right) / 2, inner_right - inner_left
            box = Box(self.layers[index], middle, y, width, self._activations.get(index, ""))
            self.layout.boxes[index] = box
            y = box.bottom
            for block in self._blocks:
                if block.first in starts and self._shown_as(block.end - 1) == index:
                    y += PAD
                    name = f"{block.kind} × {self._repeats[block]}" if block in self._repeats else block.kind
                    part, start = self.layers[index].part, starts[block.first]
                    self.layout.blocks.append(Frame("", name, part, left + PAD, right - PAD, start, y))
            y += GAP
        return y - GAP

    def _connect(self, source: int, index: int, column: Sequence[int]) -> None:
        """Draw a line from one layer to another of the same part."""
        boxes = self.layout.boxes
        if source not in boxes or self.layers[source].part != self.layers[index].part:
            return
        start, end = boxes[source], boxes[index]
        if source not in column:
            middle = end.top - GAP / 2
            self.layout.lines.append([(start.x, start.bottom), (start.x, middle), (end.x, middle), (end.x, end.top)])
        elif column.index(index) == column.index(source) + 1:
            self.layout.lines.append([(start.x, start.bottom), (end.x, end.top)])
        else:
            # A skip connection begins on the arrow to the layer after `source`.
            fork = boxes[column[column.index(source) + 1]].top - 0.55 * GAP
            lane, middle = end.x - end.width / 2 - 0.6 * LANE, (end.top + end.bottom) / 2
            edge = end.x - (end.height / 2 if end.layer.kind == "+" else end.width / 2)
            self.layout.lines.append([(start.x, fork), (lane, fork), (lane, middle), (edge, middle)])
