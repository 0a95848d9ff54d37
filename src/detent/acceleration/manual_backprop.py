"""Hand-written forward and backward passes of the networks.

Autograd zeroes gradients and accumulates where a plain write would do, and records every small operation. These passes
write each gradient once, directly into the parameter's `grad`. `tests/acceleration/test_manual_backprop.py` compares
every pass with autograd.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from detent.models.networks.trunks import MLP, Block, RegularizedNetwork, Tanh

_aten = torch.ops.aten
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


class BlockPass:
    def __init__(self, block: Block) -> None:
        self._change = FusedChain([*passes(block.norm), *passes(block.expand), ReLUPass(), *passes(block.contract)])
        self._residual = block.residual

    def forward(self, inputs: Tensor) -> Tensor:
        change = self._change.forward(inputs)
        return change.add_(inputs) if self._residual else change

    def backward(self, gradient: Tensor) -> Tensor:
        moved = self._change.backward(gradient)
        return moved.add_(gradient) if self._residual else moved


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
    if type(module) is nn.Linear:
        return [LinearPass(module, first)]
    if type(module) is Tanh:
        return [TanhPass()]
    if type(module) is nn.ReLU:
        return [ReLUPass()]
    if type(module) is nn.LayerNorm:
        return [LayerNormPass(module)]
    if type(module) is nn.Identity:
        return []
    if type(module) is Block:
        return [BlockPass(module)]
    if type(module) is RegularizedNetwork:
        return [*passes(module.projection, first), *passes(module.blocks), *passes(module.norm)]
    if type(module) in (nn.Sequential, MLP):
        found: list[Pass] = []
        for part in module.children():
            found += passes(part, first and not found)
        return found
    raise TypeError(f"{type(module).__name__} has no hand-written pass")


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
