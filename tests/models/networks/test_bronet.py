from __future__ import annotations

import math

import numpy as np
import torch
from by_hand import affine, array, count, layer_norm, shaken
from torch import nn

from detent.config import NetworkConfig
from detent.models.networks import make_trunk
from detent.models.networks.bronet import BroNet
from detent.models.networks.trunks import Residual


def test_bronet_is_the_formula_written_by_hand() -> None:
    network = shaken(make_trunk(5, NetworkConfig(kind="bronet", width=6, depth=2), "actor"))
    assert isinstance(network, BroNet)
    x = np.random.default_rng(0).standard_normal((7, 5))
    hidden = np.maximum(layer_norm(affine(x, network.projection), network.norm, 1e-6), 0)
    for block in network.blocks:
        assert isinstance(block, Residual)
        first, first_norm, _, second, second_norm = block
        change = np.maximum(layer_norm(affine(hidden, first), first_norm, 1e-6), 0)
        hidden = hidden + layer_norm(affine(change, second), second_norm, 1e-6)
    np.testing.assert_allclose(array(network(torch.from_numpy(x))), hidden, rtol=1e-10, atol=1e-12)
    assert network.num_features == 6


def test_bronet_has_the_parameters_of_its_architecture() -> None:
    n, d, depth = 17, 32, 3
    dense_and_norm = (d * d + d) + 2 * d
    expected = (n * d + d) + 2 * d + depth * 2 * dense_and_norm
    assert count(make_trunk(n, NetworkConfig(kind="bronet", width=d, depth=depth), "actor")) == expected


def test_every_layer_of_bronet_starts_orthogonal_with_gain_sqrt_2() -> None:
    network = make_trunk(10, NetworkConfig(kind="bronet", width=24, depth=2), "actor")
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 5
    for layer in layers:
        np.testing.assert_allclose(np.linalg.svd(array(layer.weight), compute_uv=False), math.sqrt(2), rtol=1e-4)
        assert (layer.bias == 0).all()


def test_without_blocks_bronet_is_its_first_layer() -> None:
    network = make_trunk(5, NetworkConfig(kind="bronet", width=6, depth=0), "critic")
    x = torch.randn(3, 5)
    assert torch.equal(network(x), network.norm(network.projection(x)).relu())
