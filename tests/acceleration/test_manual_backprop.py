from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detent.acceleration.manual_backprop import PASSES, TanhPass, autograd_passes, fuse, unfusable
from detent.config import ActorConfig
from detent.models.networks import make_trunk
from detent.models.networks.trunks import Tanh, linear

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp", "depth": 2},
    "mlp with relu": {"kind": "mlp", "depth": 3, "activation": "relu"},
    "mlp without hidden layers": {"kind": "mlp", "depth": 0},
    "rn": {"kind": "rn", "depth": 2},
    "rn without LayerNorm": {"kind": "rn", "depth": 2, "layer_norm": False},
    "rn without residual": {"kind": "rn", "depth": 2, "residual": False},
    "rn without both": {"kind": "rn", "depth": 1, "layer_norm": False, "residual": False},
    "simba": {"kind": "simba", "depth": 2},
    "bronet": {"kind": "bronet", "depth": 2},
    "bronet without blocks": {"kind": "bronet", "depth": 0},
    "simba-v2": {"kind": "simba-v2", "depth": 2},
    "simba-v2 with options": {
        "kind": "simba-v2",
        "depth": 1,
        "options": {
            "scaler_init": 0.7,
            "scaler_scale": 0.2,
            "alpha_init": 0.9,
            "alpha_scale": 0.3,
            "feature_norm": 1.0,
        },
    },
}


def make_network(settings: dict[str, Any]) -> nn.Sequential:
    torch.manual_seed(0)
    trunk = make_trunk(5, ActorConfig(width=6, **settings), "actor")
    network = nn.Sequential(trunk, linear(trunk.num_features, 3, gain=1.0)).double()
    for parameter in network.parameters():
        # Biases and LayerNorm start at 0 and 1, where a wrong gradient can look right.
        parameter.data += 0.3 * torch.randn_like(parameter)
    return network


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
def test_the_passes_are_those_of_autograd(settings: dict[str, Any]) -> None:
    assert_passes_are_those_of_autograd(make_network(settings))


def assert_passes_are_those_of_autograd(network: nn.Module) -> None:
    reference = copy.deepcopy(network)
    for parameter in network.parameters():
        # What was in the gradient before must not matter.
        parameter.grad = torch.full_like(parameter, 7.0)
    passes = fuse(network)
    for seed in range(2):
        torch.manual_seed(seed)
        inputs, gradient = torch.randn(11, 5, dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
        before, gradient_before = inputs.clone(), gradient.clone()
        with torch.no_grad():
            outputs = passes.forward(inputs)
            passes.backward(gradient)
        reference.zero_grad()
        expected = reference(inputs)
        expected.backward(gradient)
        torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(network.parameters(), reference.parameters(), strict=True):
            expected_gradient = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
            torch.testing.assert_close(ours.grad, expected_gradient, rtol=1e-10, atol=1e-10)
        assert torch.equal(inputs, before)
        assert torch.equal(gradient, gradient_before)


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
def test_the_gradient_of_the_input_is_that_of_autograd(settings: dict[str, Any]) -> None:
    """An encoder before the network needs it."""
    network = make_network(settings)
    inputs, gradient = torch.randn(11, 5, dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
    leaf = inputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(network(leaf), leaf, gradient)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    passes = fuse(network, input_gradient=True)
    with torch.no_grad():
        passes.forward(inputs)
        torch.testing.assert_close(passes.backward(gradient), expected, rtol=1e-10, atol=1e-10)


class Swish(nn.Module):
    """A module of somebody else, with a parameter that the output does not depend on."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.silu(self.layer(inputs))


def test_a_module_that_opts_in_is_differentiated_by_autograd_within_a_fused_network() -> None:
    network = nn.Sequential(nn.Linear(5, 5), Swish(), linear(6, 3, gain=1.0)).double()
    assert unfusable(network) == "Swish"
    PASSES[Swish] = autograd_passes
    try:
        assert unfusable(network) is None
        assert_passes_are_those_of_autograd(network)
        assert_passes_are_those_of_autograd(network[1:])
    finally:
        del PASSES[Swish]


def test_a_network_without_written_passes_is_named() -> None:
    with pytest.raises(TypeError, match="GELU"):
        fuse(nn.Sequential(nn.Linear(2, 2), nn.GELU()))


def test_tanh_is_tanh_and_the_same_bits_in_acting_and_updating() -> None:
    inputs = torch.cat([torch.linspace(-20, 20, 1001), torch.logspace(-8, 0, 100)])
    torch.testing.assert_close(Tanh()(inputs), inputs.tanh(), rtol=0.0, atol=2e-7)
    assert torch.equal(TanhPass().forward(inputs.clone()), Tanh()(inputs))
