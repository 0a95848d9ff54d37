from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Array, array, count, shaken

from detent.config import NetworkConfig
from detent.errors import ConfigError
from detent.models.networks import make_trunk
from detent.models.networks.simba_v2 import HypersphericalLinear, LERPBlock, Scaler, SimBaV2


def make(inputs: int = 5, width: int = 6, depth: int = 2, **options: Any) -> SimBaV2:
    network = make_trunk(inputs, NetworkConfig(kind="simba-v2", width=width, depth=depth, options=options), "actor")
    assert isinstance(network, SimBaV2)
    return network


def normalized(x: Array) -> Array:
    out: Array = x / np.sqrt((x**2).sum(-1, keepdims=True))
    return out


def on_sphere(x: Array, layer: HypersphericalLinear) -> Array:
    out: Array = x @ normalized(array(layer.weight)).T
    return out


def test_simba_v2_is_the_formula_written_by_hand() -> None:
    """With other numbers than the defaults, and with weights that an optimizer has moved off the sphere."""
    options: dict[str, Any] = {
        "shift": 2.0,
        "scaler_init": 0.7,
        "scaler_scale": 0.2,
        "alpha_init": 0.4,
        "alpha_scale": 0.1,
    }
    network = make(**options, feature_norm=3.0)
    shaken(network)
    x = np.random.default_rng(0).standard_normal((7, 5))
    hidden = normalized(np.concatenate([x, np.full((7, 1), 2.0)], axis=1))
    hidden = normalized(on_sphere(hidden, network.projection) * array(network.scaler.scaler) * 0.7 / 0.2)
    for block in network.blocks:
        assert isinstance(block, LERPBlock)
        # Inside a block, init and scale are both halved, and their quotient is the same.
        wide = on_sphere(hidden, block.expand) * array(block.scaler.scaler) * 0.7 / 0.2
        target = normalized(on_sphere(np.maximum(wide, 0) + 1e-8, block.contract))
        alpha = array(block.alpha.scaler) * 0.4 / 0.1
        hidden = normalized((1 - alpha) * hidden + alpha * target)
    np.testing.assert_allclose(array(network(torch.from_numpy(x))), 3 * hidden, rtol=1e-10, atol=1e-12)


def test_simba_v2_has_the_parameters_of_its_architecture_and_no_biases() -> None:
    n, d, depth = 17, 32, 3
    block = d * 4 * d + 4 * d + 4 * d * d + d
    assert count(make(n, d, depth)) == ((n + 1) * d + d) + depth * block
    assert not any("bias" in name for name, _ in make(n, d, depth).named_parameters())


def test_weights_start_orthogonal_and_on_the_sphere() -> None:
    network = make(inputs=40, width=16)
    layers = [module for module in network.modules() if isinstance(module, HypersphericalLinear)]
    assert len(layers) == 5
    for layer in layers:
        weight = array(layer.weight)
        np.testing.assert_allclose(np.linalg.norm(weight, axis=1), 1, rtol=1e-6)
        if weight.shape[0] <= weight.shape[1]:
            np.testing.assert_allclose(weight @ weight.T, np.eye(len(weight)), atol=1e-6)


def test_scalers_start_as_in_the_paper() -> None:
    width, depth = 16, 3
    network = make(width=width, depth=depth)
    # sqrt(2 / width) of the embedding, half of it in blocks, and 1 / (depth + 1) of the way.
    assert network.scaler.scaler.tolist() == pytest.approx([math.sqrt(2 / 16)] * width)
    assert network.scaler.factor == pytest.approx(1)
    for block in network.blocks:
        assert isinstance(block, LERPBlock)
        assert block.scaler.scaler.tolist() == pytest.approx([math.sqrt(2 / 16) / 2] * 4 * width)
        assert block.scaler.factor == pytest.approx(1)
        assert block.alpha.scaler.tolist() == pytest.approx([1 / 4] * width)
        assert block.alpha.factor * block.alpha.scaler[0].item() == pytest.approx(1 / (depth + 1))
    assert network.shift == 3


def test_a_scaler_starts_at_init_and_moves_by_init_over_scale() -> None:
    scaler = Scaler(3, init=0.5, scale=0.1)
    x = torch.randn(4, 3)
    torch.testing.assert_close(scaler(x), 0.5 * x)
    scaler.scaler.data += 0.01
    torch.testing.assert_close(scaler(x), (0.5 + 0.01 * 5) * x)


def test_features_lie_on_a_sphere_whatever_the_input() -> None:
    network = make(width=16).double()
    for scale in (0.0, 1e-3, 1.0, 1e6):
        features = network(scale * torch.randn(4, 5, dtype=torch.float64))
        np.testing.assert_allclose(array(features.norm(dim=-1)), 4, rtol=1e-12)
    np.testing.assert_allclose(array(make(feature_norm=1.0)(torch.randn(4, 5)).norm(dim=-1)), 1, rtol=1e-5)


def test_the_shift_keeps_inputs_apart_that_differ_in_length_alone() -> None:
    network = make().double()
    x = torch.randn(1, 5, dtype=torch.float64)
    assert (network(x) - network(2 * x)).abs().max() > 1e-2


def test_the_length_of_weights_changes_no_output_and_their_gradient_is_tangent_to_the_sphere() -> None:
    network = make().double()
    x = torch.randn(7, 5, dtype=torch.float64)
    outputs = network(x)
    torch.autograd.backward(outputs[:, 0].sum())
    layers = [module for module in network.modules() if isinstance(module, HypersphericalLinear)]
    for layer in layers:
        assert layer.weight.grad is not None
        assert layer.weight.grad.abs().max() > 1e-4
        torch.testing.assert_close((layer.weight.grad * layer.weight).sum(1), torch.zeros(len(layer.weight)).double())
        layer.weight.data *= torch.rand(len(layer.weight), 1, dtype=torch.float64) + 0.5
    torch.testing.assert_close(network(x), outputs, rtol=1e-12, atol=1e-12)
    for layer in layers:
        layer.after_step()
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(len(layer.weight)).double())
    torch.testing.assert_close(network(x), outputs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 1}, "the width of simba-v2 is 1; it must be at least 2"),
        ({"alpha_init": 1.5}, r"the option alpha_init of simba-v2 is 1.5; it must lie in \[0, 1\]"),
        ({"alpha_init": -0.1}, r"the option alpha_init of simba-v2 is -0.1; it must lie in \[0, 1\]"),
        ({"shift": 0.0}, "the option shift of simba-v2 is 0.0; it must be positive and finite"),
        ({"scaler_scale": -1.0}, "the option scaler_scale of simba-v2 is -1.0; it must be positive and finite"),
        ({"feature_norm": math.inf}, "the option feature_norm of simba-v2 is inf; it must be positive and finite"),
        ({"alpha": 0.5}, "unknown setting 'actor.options.alpha'"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(**settings)


@pytest.mark.parametrize("kind", ["simba", "bronet"])
def test_networks_without_options_refuse_them(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"actor.options has shift; trunk '{kind}' takes no options"):
        make_trunk(5, NetworkConfig(kind=kind, options={"shift": 1.0}), "actor")
