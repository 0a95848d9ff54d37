"""Hand-written forward and backward passes of the networks.

Autograd zeroes gradients and accumulates where a plain write would do, and records every small operation. These passes
write each gradient once, directly into the parameter's `grad`. `tests/acceleration/test_manual_backprop.py` compares
every pass with autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from detent.acceleration.hyperspherical_backprop import EmbeddingPass, FeatureNormPass, LERPBlockPass
from detent.models.networks.bronet import BroNet
from detent.models.networks.simba import SimBa
from detent.models.networks.simba_v2 import LERPBlock, SimBaV2
from detent.models.networks.trunks import MLP, Block, RegularizedNetwork, Residual, Tanh

_aten = torch.ops.aten
MakePasses: TypeAlias = Callable[[Any, bool], "list[Pass]"]
"""Makes the passes of a module; the flag says that it is the first of a network, whose input needs no gradient."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Pass(Protocol):
    """A part of a network; `forward` stores what `backward` needs."""

    def forward(self, inputs: Tensor) -> Tensor: ...

    def backward(self, gradient: Tensor) -> Tensor:
        """Map the output's gradient to the input's, and write the parameters' gradients to their `grad`."""
        ...


class LinearPass:
    def __init__(self, layer: nn.Linear, first: bool) -> None:
        """Wrap `layer`; if it is the `first` of a network, `backward` skips the unused gradient of its input."""
        self._layer, self._first = layer, first

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs
        return linear(inputs, self._layer.weight, self._layer.bias)

    def backward(self, gradient: Tensor) -> Tensor:
        weight = self._layer.weight
        torch.mm(gradient.t(), self._inputs, out=weight.grad)
        torch.sum(gradient, 0, out=self._layer.bias.grad)
        return gradient if self._first else gradient.mm(weight)


class TanhPass:
    def forward(self, inputs: Tensor) -> Tensor:
        # In place and bit-identical to `Tanh`, so that the policy being updated is the one that acted.
        if inputs.device.type == "cpu":
            squashed = inputs.add_(inputs).sigmoid_()
            self._outputs = squashed.add_(squashed).sub_(1)
        else:
            self._outputs = inputs.tanh_()
        return self._outputs

    def backward(self, gradient: Tensor) -> Tensor:
        moved: Tensor = _aten.tanh_backward(gradient, self._outputs)
        return moved


class ReLUPass:
    def forward(self, inputs: Tensor) -> Tensor:
        self._outputs = inputs.relu_()
        return self._outputs

    def backward(self, gradient: Tensor) -> Tensor:
        moved: Tensor = _aten.threshold_backward(gradient, self._outputs, 0)
        return moved


class LayerNormPass:
    def __init__(self, layer: nn.LayerNorm) -> None:
        self._layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        layer = self._layer
        self._inputs = inputs
        outputs, self._mean, self._rstd = torch.native_layer_norm(
            inputs, layer.normalized_shape, layer.weight, layer.bias, layer.eps
        )
        return outputs

    def backward(self, gradient: Tensor) -> Tensor:
        layer = self._layer
        moved: Tensor
        moved, weight, bias = _aten.native_layer_norm_backward(
            gradient,
            self._inputs,
            layer.normalized_shape,
            self._mean,
            self._rstd,
            layer.weight,
            layer.bias,
            [True, True, True],
        )
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        layer.weight.grad.copy_(weight)
        layer.bias.grad.copy_(bias)
        return moved


class ResidualPass:
    def __init__(self, change: list[Pass]) -> None:
        self._change = FusedChain(change)

    def forward(self, inputs: Tensor) -> Tensor:
        return self._change.forward(inputs).add_(inputs)

    def backward(self, gradient: Tensor) -> Tensor:
        return self._change.backward(gradient).add_(gradient)


class AutogradPass:
    """A module that autograd differentiates."""

    def __init__(self, module: nn.Module, first: bool) -> None:
        self._module, self._parameters, self._first = module, list(module.parameters()), first

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs.detach().requires_grad_(not self._first)
        with torch.enable_grad():
            self._outputs: Tensor = self._module(self._inputs)
        outputs: Tensor = self._outputs.detach()
        return outputs

    def backward(self, gradient: Tensor) -> Tensor:
        sources = [*self._parameters, *([] if self._first else [self._inputs])]
        gradients = torch.autograd.grad(self._outputs, sources, gradient, allow_unused=True, materialize_grads=True)
        for parameter, own_gradient in zip(self._parameters, gradients, strict=False):
            assert parameter.grad is not None
            parameter.grad.copy_(own_gradient)
        moved: Tensor = gradients[-1]
        return moved


class FusedChain:
    """Passes in sequence: a whole network without the overhead of modules and autograd."""

    def __init__(self, parts: list[Pass]) -> None:
        self._parts = parts

    def forward(self, inputs: Tensor) -> Tensor:
        for part in self._parts:
            inputs = part.forward(inputs)
        return inputs

    def backward(self, gradient: Tensor) -> Tensor:
        for part in reversed(self._parts):
            gradient = part.backward(gradient)
        return gradient


def fuse(network: nn.Module, input_gradient: bool = False) -> FusedChain:
    """Return a network as a chain of passes; its parameters must have a `grad` to write to before `backward`.

    `backward` returns the gradient of the network's input only with `input_gradient`.
    """
    return FusedChain(passes(network, first=not input_gradient))


def passes(module: nn.Module, first: bool = False) -> list[Pass]:
    """Return the passes of a module, looked up by exact type because a subclass may compute something else."""
    if type(module) not in PASSES:
        raise TypeError(f"{type(module).__name__} has no hand-written pass")
    return PASSES[type(module)](module, first)


def _sequential(module: nn.Sequential, first: bool) -> list[Pass]:
    found: list[Pass] = []
    for part in module:
        found += passes(part, first and not found)
    return found


def _block(block: Block, first: bool) -> list[Pass]:
    change = [*passes(block.norm), *passes(block.expand), ReLUPass(), *passes(block.contract)]
    return [ResidualPass(change)] if block.residual else change


def _regularized_network(network: RegularizedNetwork, first: bool) -> list[Pass]:
    return [*passes(network.projection, first), *passes(network.blocks), *passes(network.norm)]


def _simba_v2(network: SimBaV2, first: bool) -> list[Pass]:
    return [EmbeddingPass(network, first), *passes(network.blocks), FeatureNormPass(network)]


def autograd_passes(module: nn.Module, first: bool) -> list[Pass]:
    """Leave a module to autograd, as part of a network that otherwise has hand-written passes.

    For modules whose outputs depend on nothing but inputs and parameters: no dropout, no statistics of the batch.
    """
    return [AutogradPass(module, first)]


PASSES: dict[type[nn.Module], MakePasses] = {
    nn.Linear: lambda layer, first: [LinearPass(layer, first)],
    nn.ReLU: lambda layer, first: [ReLUPass()],
    nn.LayerNorm: lambda layer, first: [LayerNormPass(layer)],
    nn.Identity: lambda layer, first: [],
    nn.Sequential: _sequential,
    Tanh: lambda layer, first: [TanhPass()],
    Residual: lambda module, first: [ResidualPass(_sequential(module, False))],
    Block: _block,
    RegularizedNetwork: _regularized_network,
    MLP: _sequential,
    SimBa: _sequential,
    BroNet: _sequential,
    LERPBlock: lambda block, first: [LERPBlockPass(block)],
    SimBaV2: _simba_v2,
}
"""Forms of modules in the accelerated engine, by exact type; a plug-in may add its own, or `autograd_passes`."""


def has_hooks(network: nn.Module) -> bool:
    """Return whether any module of `network` has a hook, which may observe or change what the module computes."""
    return any(
        "forward" in vars(module) or any(getattr(module, hooks, None) for hooks in _HOOKS)
        for module in network.modules()
    )


def unfusable(network: nn.Module) -> str | None:
    """Name the first module of a network that has no exact hand-written form; return None if every one has."""
    for name, module in network.named_modules():
        where = f"{type(module).__name__}{f' ({name})' if name else ''}"
        if any(getattr(module, hooks, None) for hooks in _HOOKS):
            return f"{where}, which has hooks,"
        if any(not parameter.requires_grad for parameter in module.parameters(recurse=False)):
            return f"{where}, which has frozen parameters,"
    try:
        passes(network)
    except TypeError as error:
        return str(error).partition(" has ")[0]
    return None
