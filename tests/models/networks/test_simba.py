from __future__ import annotations

import math

import numpy as np
import torch
from by_hand import affine, array, count, layer_norm, shaken
from scipy import stats
from torch import nn

from detent.config import NetworkConfig
from detent.models.networks import make_trunk
from detent.models.networks.simba import SimBa
from detent.models.networks.trunks import RegularizedNetwork, Residual


def test_simba_is_the_formula_written_by_hand() -> None:
    network = shaken(make_trunk(5, NetworkConfig(kind="simba", width=6, depth=2), "actor"))
    assert isinstance(network, SimBa)
    # Small numbers, so that the epsilon of LayerNorm counts.
    x = 1e-2 * np.random.default_rng(0).standard_normal((7, 5))
    network.projection.bias.data.mul_(1e-2)
    hidden = affine(x, network.projection)
    for block in network.blocks:
        assert isinstance(block, Residual)
        norm, expand, _, contract = block
        hidden = hidden + affine(np.maximum(affine(layer_norm(hidden, norm, 1e-6), expand), 0), contract)
    expected = layer_norm(hidden, network.norm, 1e-6)
    np.testing.assert_allclose(array(network(torch.from_numpy(x))), expected, rtol=1e-10, atol=1e-12)
    assert network.num_features == 6


def test_simba_is_rn_but_for_the_epsilon_of_layer_norm_and_the_tails_of_initial_weights() -> None:
    simba, rn = (
        make_trunk(7, NetworkConfig(kind=kind, width=32, depth=2), "actor").double() for kind in ("simba", "rn")
    )
    assert isinstance(rn, RegularizedNetwork)
    assert count(simba) == count(rn)
    for one, other in zip(rn.parameters(), simba.parameters(), strict=True):
        one.data.copy_(other)
    for module in rn.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    x = torch.randn(9, 7, dtype=torch.float64)
    torch.testing.assert_close(simba(x), rn(x), rtol=1e-12, atol=1e-12)


def test_blocks_start_he_normal_cut_off_at_two_deviations() -> None:
    torch.manual_seed(0)
    width = 64
    simba = make_trunk(10, NetworkConfig(kind="simba", width=width, depth=1), "actor")
    _, expand, _, contract = simba.blocks[0]
    for layer, fan_in in ((expand, width), (contract, 4 * width)):
        weights = array(layer.weight).ravel()
        # 16384 numbers: their standard deviation is known to about 1 / sqrt(2 * 16384) = 0.6%.
        assert abs(weights.std() / math.sqrt(2 / fan_in) - 1) < 0.025
        scale = math.sqrt(2 / fan_in) / stats.truncnorm(-2, 2).std()
        assert abs(weights).max() <= 2 * scale
        assert stats.kstest(weights / scale, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
        assert (layer.bias == 0).all()
    np.testing.assert_allclose(np.linalg.svd(array(simba.projection.weight), compute_uv=False), 1.0, rtol=1e-4)
    assert (simba.projection.bias == 0).all()


def test_without_blocks_simba_is_a_normalized_projection() -> None:
    simba = make_trunk(5, NetworkConfig(kind="simba", width=6, depth=0), "critic")
    x = torch.randn(3, 5)
    assert torch.equal(simba(x), simba.norm(simba.projection(x)))
