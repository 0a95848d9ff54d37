"""The network diagram: every text readable and in its place, blocks drawn once, skip connections beside them."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from detent.config.presets import configure
from detent.models.architecture import Architecture, Group, Layer, Part, describe
from detent.models.policy import Policy
from detent.report.network import draw_network
from detent.report.network_layout import arrange
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

ACTION = ActionSpec((-1.0,) * 17, (1.0,) * 17)
STATE, IMAGES = ObservationSpec(376), ObservationSpec(25, image=(128, 128, 3))
CASES = {
    "rn-d": ("Humanoid-v4", STATE, {}),
    "mlp-c": ("Humanoid-v4", STATE, {}),
    "loss-swap": ("Humanoid-v4", STATE, {}),
    "images": ("PushCube-v1", IMAGES, {"env.obs": "rgb+state"}),
}


def network(name: str) -> Architecture:
    task, observation, overrides = CASES[name]
    variant = name if name in ("rn-d", "mlp-c", "loss-swap") else "rn-d"
    return describe(Policy(EnvSpec(observation, ACTION), configure(task, variant=variant, overrides=overrides)))


def layer(kind: str, *sources: int, part: Part = "actor", parameters: int = 9) -> Layer:
    return Layer(f"{part}.{kind}", kind, (4,), (4,), parameters, sources, part)


def texts(canvas: Canvas) -> list[tuple[str, Bbox]]:
    return [(text.get_text(), text.get_window_extent()) for text in canvas.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [2.5, 3.25, 6.75])
def test_no_text_covers_another_or_leaves_the_page(
    name: str, width: float, tmp_path: Path, figures: list[Canvas]
) -> None:
    paths = tmp_path / "network.pdf", tmp_path / "network.svg"
    draw_network(network(name), *paths, width=width)
    canvas = figures[-1]
    found = texts(canvas)
    assert min(float(text.get_fontsize()) for text in canvas.findobj(Text) if text.get_text()) >= 7
    for (one, box), (other, another) in combinations(found, 2):
        shared = Bbox.intersection(box, another)
        assert shared is None or shared.width < 1 or shared.height < 1, (one, other)
    for one, box in found:
        assert canvas.bbox.x0 <= box.x0, one
        assert box.x1 <= canvas.bbox.x1, one
    content = paths[0].read_bytes()
    assert float(re.findall(rb"/MediaBox \[ 0 0 ([\d.]+)", content)[0]) == pytest.approx(72 * width)
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


def test_the_numbers_in_the_figure_are_the_networks(tmp_path: Path, figures: list[Canvas]) -> None:
    draw_network(network("rn-d"), tmp_path / "network.svg", width=3.25)
    written = [text for text, _ in texts(figures[-1])]
    projection, norm = 376 * 256 + 256, 2 * 256
    expand, contract = 256 * 1024 + 1024, 1024 * 256 + 256
    output = 256 * 17 * 41 + 17 * 41
    actor = projection + 2 * (norm + expand + contract) + norm + output
    critic = 376 * 64 + 64 + 65
    for number in (projection, norm, expand, contract, output):
        assert f"{number:,}" in written
    assert {f"{actor:,} parameters", f"{critic:,} parameters", "17 × 41 bins", "Block × 2", "376 → 256"} <= set(written)
    assert written.count(f"{expand:,}") == 1, "a repeated block is drawn once"


def test_mlp_c_counts_its_standard_deviations(tmp_path: Path, figures: list[Canvas]) -> None:
    draw_network(network("mlp-c"), tmp_path / "network.svg", width=3.25)
    written = [text for text, _ in texts(figures[-1])]
    actor = 376 * 256 + 256 + 256 * 256 + 256 + 256 * 17 + 17
    assert f"{actor + 17:,} parameters" in written
    assert "17 × mean and std" in written
    assert written.count("Tanh") == 3


def test_the_same_network_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw_network(network("rn-d"), tmp_path / f"{name}.pdf", tmp_path / f"{name}.svg", width=3.25)
    for ending in ("pdf", "svg"):
        assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()


def test_branches_are_side_by_side_and_a_skip_connection_goes_around_its_layers() -> None:
    layers = [
        layer("state", part="observation", parameters=0),
        layer("Linear", 0),
        layer("Left", 1),
        layer("Right", 1),
        layer("concatenate", 2, 3, parameters=0),
        layer("Linear", 4),
        layer("Linear", 5),
        layer("+", 4, 6, parameters=0),
        layer("Linear", 0, part="critic"),
    ]
    block = Group("actor.0.block", "Mine", 18, 5, 8)
    sizes = {"encoder": 0, "actor": 45, "head": 0, "critic": 9, "total": 54}
    layout = arrange(Architecture(tuple(layers), (block,), sizes), 3.25)
    boxes = layout.boxes
    assert boxes[2].top == boxes[3].top
    assert boxes[2].x + boxes[2].width / 2 < boxes[3].x - boxes[3].width / 2
    assert boxes[4].x == pytest.approx((boxes[2].x + boxes[3].x) / 2, abs=0.1)
    (frame,) = layout.blocks
    assert frame.note == "Mine"
    assert boxes[4].bottom < frame.top < boxes[5].top
    assert boxes[7].bottom < frame.bottom
    (skip,) = [line for line in layout.lines if line[-1][1] == pytest.approx(boxes[7].top + boxes[7].height / 2)]
    assert boxes[4].bottom < skip[0][1] < boxes[5].top
    assert frame.left < skip[1][0] < boxes[5].x - boxes[5].width / 2
