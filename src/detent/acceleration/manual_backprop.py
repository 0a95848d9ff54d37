"""Forward and backward passes of the networks, written out.

Autograd zeroes the gradient and adds to it where writing would do, and records every small operation. Here each
gradient is written once, straight into the parameter's `grad`. `tests/test_backprop.py` compares every pass with
autograd.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from detent.models.networks.trunks import Block, RegularizedNetwork, Tanh

_aten = torch.ops.aten


class Pass(Protocol):
    """A part of a network: `forward` remembers what `backward` needs."""

    def forward(self, inputs: Tensor) -> Tensor: ...

    def backward(self, gradient: Tensor) -> Tensor:
        """From the gradient of the output to that of the input; those of the parameters go into their `grad`."""
        ...


class LinearPass:
    def __init__(self, layer: nn.Linear, first: bool) -> None:
        """The `first` layer of a network has no use for the gradient of its input, and does not compute it."""
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
        # In place, to the bit what `Tanh` gives: the policy that acted is the one that is updated.
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
        self._change = Chain([*passes(block.norm), *passes(block.expand), ReLUPass(), *passes(block.contract)])
        self._residual = block.residual

    def forward(self, inputs: Tensor) -> Tensor:
        change = self._change.forward(inputs)
        return change.add_(inputs) if self._residual else change

    def backward(self, gradient: Tensor) -> Tensor:
        moved = self._change.backward(gradient)
        return moved.add_(gradient) if self._residual else moved


class Chain:
    """Passes one after the other."""

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


def written_out(network: nn.Module, input_gradient: bool = False) -> Chain:
    """The passes of a whole network, whose parameters must have a `grad` to write to.

    Only with `input_gradient` does `backward` return the gradient of the network's input.
    """
    return Chain(passes(network, first=not input_gradient))


def passes(module: nn.Module, first: bool = False) -> list[Pass]:
    match module:
        case nn.Linear():
            return [LinearPass(module, first)]
        case Tanh():
            return [TanhPass()]
        case nn.ReLU():
            return [ReLUPass()]
        case nn.LayerNorm():
            return [LayerNormPass(module)]
        case nn.Identity():
            return []
        case Block():
            return [BlockPass(module)]
        case RegularizedNetwork():
            return [*passes(module.projection, first), *passes(module.blocks), *passes(module.norm)]
        case nn.Sequential():
            found: list[Pass] = []
            for part in module:
                found += passes(part, first and not found)
            return found
    raise TypeError(f"{type(module).__name__} has no pass written out in detent.acceleration.manual_backprop")
