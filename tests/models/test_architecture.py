"""The description of a policy's network: what runs, on what shapes, fed by what, and with how many parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detent.config import NetworkConfig
from detent.config.presets import configure
from detent.models.architecture import Architecture, Layer, describe
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

ACTION = ActionSpec((-1.0,) * 6, (1.0,) * 6)
CHEETAH = EnvSpec(ObservationSpec(17), ACTION)


class Gated(nn.Module):
    """A trunk with parameters of its own, two branches, a residual, and a gate, none of them declared anywhere."""

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.num_features = 8
        self.scale = nn.Parameter(torch.ones(8))
        self.start = nn.Linear(inputs, 8)
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)
        self.never = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        start = self.start(inputs) * self.scale
        both = torch.cat([self.left(start).tanh(), nn.functional.relu(self.right(start))], dim=-1)
        mixed: Tensor = start + both
        return mixed * mixed.sigmoid()


class Twice(nn.Module):
    """A trunk that uses one layer twice, beside a module that does nothing."""

    def __init__(self, inputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.num_features = 17
        self.layer, self.nothing = nn.Linear(17, 17), nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.layer(self.nothing(self.layer(inputs)))
        return features


def described(
    variant: str, overrides: dict[str, Any] | None = None, spec: EnvSpec = CHEETAH, task: str = "HalfCheetah-v4"
) -> Architecture:
    return describe(Policy(spec, configure(task, variant=variant, overrides=overrides or {})))


def actor(architecture: Architecture) -> list[Layer]:
    return [layer for layer in architecture.layers if layer.part == "actor"]


def test_rn_d_is_the_papers_network() -> None:
    architecture = described("rn-d")
    # 17 observations, width 256, blocks that widen four times, 6 dimensions of 41 bins.
    projection, norm = 17 * 256 + 256, 2 * 256
    expand, contract = 256 * 1024 + 1024, 1024 * 256 + 256
    output = 256 * 6 * 41 + 6 * 41
    block = [("LayerNorm", norm), ("Linear", expand), ("ReLU", 0), ("Linear", contract), ("+", 0)]
    expected = [("Linear", projection), *block, *block, ("LayerNorm", norm), ("Linear", output)]
    expected += [("CategoricalHead", 0), ("action", 0)]
    assert [(layer.kind, layer.parameters) for layer in actor(architecture)] == expected
    total = projection + 2 * (norm + expand + contract) + norm + output
    critic = 17 * 64 + 64 + 64 + 1
    assert architecture.parameters == {
        "encoder": 0, "actor": total, "head": 0, "critic": critic, "total": total + critic,
    }  # fmt: skip
    head = actor(architecture)[-2]
    assert (head.inputs, head.outputs, head.detail) == ((246,), (6, 41), "41 bins")
    blocks = [group for group in architecture.groups if group.kind == "Block"]
    assert [group.parameters for group in blocks] == [norm + expand + contract] * 2
    for group in blocks:
        (entry,) = architecture.layers[group.first].sources
        assert architecture.layers[group.end - 1].sources == (entry, group.end - 2), "h + FFN(LN(h))"


def test_mlp_c_has_its_standard_deviations_in_the_head() -> None:
    architecture = described("mlp-c")
    layers = [17 * 256 + 256, 0, 256 * 256 + 256, 0, 256 * 6 + 6]
    assert [layer.parameters for layer in actor(architecture)] == [*layers, 6, 0]
    kinds = ["Linear", "Tanh", "Linear", "Tanh", "Linear", "GaussianHead", "action"]
    assert [layer.kind for layer in actor(architecture)] == kinds
    critic = 17 * 64 + 64 + 64 + 1
    assert architecture.parameters == {
        "encoder": 0, "actor": sum(layers), "head": 6, "critic": critic, "total": sum(layers) + 6 + critic,
    }  # fmt: skip


@pytest.mark.parametrize(("variant", "adds", "norms"), [("plain-d", 0, 0), ("residual-d", 2, 0), ("layernorm-d", 0, 3)])
def test_components_that_are_left_out_are_not_described(variant: str, adds: int, norms: int) -> None:
    kinds = [layer.kind for layer in actor(described(variant))]
    assert (kinds.count("+"), kinds.count("LayerNorm"), kinds.count("Identity")) == (adds, norms, 0)


def test_images_and_state_are_two_branches_that_a_concatenation_joins() -> None:
    spec = EnvSpec(ObservationSpec(25, image=(128, 128, 3)), ACTION)
    architecture = described("rn-d", {"env.obs": "rgb+state", "encoder.width": 256}, spec, "PushCube-v1")
    encoder = [layer for layer in architecture.layers if layer.part == "observation"]
    # 128 -> 31 -> 14 -> 12 pixels.
    sizes = [32 * 3 * 64 + 32, 64 * 32 * 16 + 64, 64 * 64 * 9 + 64, 64 * 144 * 256 + 256, 25 * 256 + 256]
    assert [layer.parameters for layer in encoder if layer.parameters] == sizes
    assert architecture.parameters["encoder"] == sum(sizes)
    convolution = next(layer for layer in encoder if layer.kind == "Conv2d")
    assert (convolution.inputs, convolution.outputs, convolution.detail) == ((3, 128, 128), (32, 31, 31), "8×8 / 4")
    *_, relu, state, join = encoder
    assert (relu.kind, state.name, join.kind, join.outputs) == ("ReLU", "encoder.state", "concatenate", (512,))
    assert [architecture.layers[source] for source in join.sources] == [relu, state]
    assert [encoder[source].kind for source in state.sources] == ["state"]
    readers = [layer.part for layer in architecture.layers if encoder.index(join) in layer.sources]
    assert readers == ["actor", "critic"], "they share the encoder"


def test_a_trunk_of_a_plug_in_is_followed_through_branches_residuals_and_gates() -> None:
    architecture = described("custom", {"actor.kind": f"{__name__}:Gated"})
    start, *rest = (index for index, layer in enumerate(architecture.layers) if layer.part == "actor")
    found = [(layer.kind, [source - start for source in layer.sources]) for layer in actor(architecture)[: len(rest)]]
    assert found == [
        ("Linear", [-1]),
        ("Linear", [0]),
        ("Tanh", [1]),
        ("Linear", [0]),
        ("ReLU", [3]),
        ("concatenate", [2, 4]),
        ("+", [0, 5]),
        ("Sigmoid", [6]),
        ("×", [6, 7]),
        ("Linear", [8]),
        ("CategoricalHead", [9]),
    ]
    # All of its parameters count, those of no layer and those of a layer that never runs as well.
    trunk = next(group for group in architecture.groups if group.kind == "Gated")
    assert trunk.parameters == 8 + (17 * 8 + 8) + 2 * (8 * 4 + 4) + (3 * 3 + 3)


def test_a_layer_that_runs_twice_is_counted_once() -> None:
    layers = actor(described("custom", {"actor.kind": f"{__name__}:Twice"}))
    assert [(layer.name, layer.parameters) for layer in layers[:2]] == [
        ("actor.0.layer", 17 * 18),
        ("actor.0.layer", 0),
    ]


@pytest.mark.parametrize("variant", ["rn-d", "rn-c", "mlp-d", "mlp-c", "loss-swap"])
def test_the_numbers_are_torchs_and_the_policy_is_left_as_it_was(variant: str) -> None:
    policy = Policy(CHEETAH, configure("HalfCheetah-v4", variant=variant)).train()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    architecture = describe(policy)
    assert architecture.parameters["total"] == sum(parameter.numel() for parameter in policy.parameters())
    assert sum(layer.parameters for layer in architecture.layers) == architecture.parameters["total"]
    assert policy.training
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in policy.modules())
