from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from by_hand import Array, affine, array, count, layer_norm, shaken
from scipy import stats
from torch import nn

from detent.config import NetworkConfig
from detent.models.networks import make_trunk
from detent.models.networks.trunks import MLP, Block, RegularizedNetwork, linear


def block_by_hand(x: Array, block: Block, norm: bool, residual: bool) -> Array:
    """`h + W2 relu(W1 LN(h) + b1) + b2`, the paper's block."""
    inner = layer_norm(x, block.norm) if norm else x
    change = affine(np.maximum(affine(inner, block.expand), 0), block.contract)
    return x + change if residual else change


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_regularized_network_is_the_formula_written_by_hand(norm: bool, residual: bool) -> None:
    config = NetworkConfig(kind="rn", width=6, depth=2, layer_norm=norm, residual=residual)
    network = shaken(make_trunk(5, config, "actor"))
    assert isinstance(network, RegularizedNetwork)
    x = np.random.default_rng(0).standard_normal((7, 5))
    hidden = affine(x, network.projection)
    for block in network.blocks:
        assert isinstance(block, Block)
        hidden = block_by_hand(hidden, block, norm, residual)
    expected = layer_norm(hidden, network.norm) if norm else hidden
    np.testing.assert_allclose(array(network(torch.from_numpy(x))), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_mlp_is_its_layers_with_the_chosen_activation(activation: Literal["tanh", "relu"]) -> None:
    network = shaken(make_trunk(5, NetworkConfig(kind="mlp", width=6, depth=3, activation=activation), "actor"))
    assert isinstance(network, MLP)
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert len(layers) == 3
    x = np.random.default_rng(0).standard_normal((7, 5))
    hidden = x
    for layer in layers:
        hidden = affine(hidden, layer)
        hidden = np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0)
    np.testing.assert_allclose(array(network(torch.from_numpy(x))), hidden, rtol=1e-10, atol=1e-12)
    assert network.num_features == 6


def test_depth_zero_is_a_linear_policy_or_a_bare_projection() -> None:
    identity = make_trunk(5, NetworkConfig(kind="mlp", width=6, depth=0), "actor")
    x = torch.randn(3, 5)
    assert torch.equal(identity(x), x)
    assert identity.num_features == 5
    bare = make_trunk(5, NetworkConfig(kind="rn", width=6, depth=0, layer_norm=False), "actor")
    assert isinstance(bare, RegularizedNetwork)
    assert torch.equal(bare(x), bare.projection(x))
    assert bare.num_features == 6


def test_parameter_counts_are_those_of_the_architecture() -> None:
    n, d, depth = 17, 32, 3
    ffn = (d * 4 * d + 4 * d) + (4 * d * d + d)
    norms = (depth + 1) * 2 * d
    projection = n * d + d
    config = NetworkConfig(kind="rn", width=d, depth=depth)
    assert count(make_trunk(n, config, "actor")) == projection + depth * ffn + norms
    without = NetworkConfig(kind="rn", width=d, depth=depth, layer_norm=False, residual=False)
    assert count(make_trunk(n, without, "actor")) == projection + depth * ffn
    assert count(make_trunk(n, NetworkConfig(kind="mlp", width=d, depth=depth), "actor")) == projection + 2 * (
        d * d + d
    )


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 16), (16, 40), (16, 16), (1, 5), (5, 1)])
@pytest.mark.parametrize("gain", [0.01, 1.0, math.sqrt(2)])
def test_linear_layers_start_orthogonal_with_their_gain(inputs: int, outputs: int, gain: float) -> None:
    layer = linear(inputs, outputs, gain)
    singular_values = np.linalg.svd(array(layer.weight).astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(singular_values, gain, rtol=1e-4)
    assert (layer.bias == 0).all()


def test_projection_has_gain_1_and_mlp_layers_sqrt_2() -> None:
    rn = make_trunk(10, NetworkConfig(kind="rn", width=24, depth=1), "actor")
    assert isinstance(rn, RegularizedNetwork)
    np.testing.assert_allclose(np.linalg.svd(array(rn.projection.weight), compute_uv=False), 1.0, rtol=1e-4)
    mlp = make_trunk(10, NetworkConfig(kind="mlp", width=24, depth=2), "actor")
    for layer in mlp.modules():
        if isinstance(layer, nn.Linear):
            np.testing.assert_allclose(np.linalg.svd(array(layer.weight), compute_uv=False), math.sqrt(2), rtol=1e-4)
            assert (layer.bias == 0).all()


def test_blocks_start_he_normal_with_zero_biases_and_neutral_norms() -> None:
    torch.manual_seed(0)
    width = 64
    block = Block(width, layer_norm=True, residual=True)
    for layer, fan_in in ((block.expand, width), (block.contract, 4 * width)):
        # 16384 numbers: their standard deviation is known to 1 / sqrt(2 * 16384) = 0.6%.
        weights = array(layer.weight).ravel() / math.sqrt(2 / fan_in)
        assert weights.size == 16384
        assert abs(weights.std() - 1) < 0.025
        assert stats.kstest(weights, "norm").pvalue > 1e-3
        assert (layer.bias == 0).all()
    assert isinstance(block.norm, nn.LayerNorm)
    assert (block.norm.weight == 1).all()
    assert (block.norm.bias == 0).all()


def test_a_residual_block_passes_its_input_on_unchanged_where_its_ffn_is_silent() -> None:
    block = Block(8, layer_norm=True, residual=True)
    nn.init.zeros_(block.contract.weight)
    x = torch.randn(4, 8)
    assert torch.equal(block(x), x)


def test_features_have_the_same_scale_whatever_the_scale_of_the_input() -> None:
    network = RegularizedNetwork(5, NetworkConfig(kind="rn", width=16, depth=2)).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    for scale in (1.0, 1e3, 1e6):
        features = array(network(scale * x))
        np.testing.assert_allclose(features.mean(-1), 0, atol=1e-9)
        np.testing.assert_allclose(features.std(-1), 1, rtol=1e-3)
