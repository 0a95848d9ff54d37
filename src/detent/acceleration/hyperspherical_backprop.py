"""Hand-written forward and backward passes of SimBa v2.

Autograd forms the gradient of every weight norm as a matrix of its own; here it is one number per unit.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from detent.models.networks.simba_v2 import EPS, HypersphericalLinear, LERPBlock, Scaler, SimBaV2

_aten = torch.ops.aten


class HypersphericalLinearPass:
    def __init__(self, layer: HypersphericalLinear, first: bool = False) -> None:
        """Wrap `layer`; if it is the `first` of a network, `backward` skips the unused gradient of its input."""
        self._layer, self._first = layer, first

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self._layer.weight
        self._inputs, self._norm = inputs, torch.linalg.vector_norm(weight, dim=1)
        self._outputs = linear(inputs, weight).div_(self._norm)
        return self._outputs

    def backward(self, gradient: Tensor) -> Tensor:
        weight = self._layer.weight
        gradient = gradient / self._norm
        torch.mm(gradient.t(), self._inputs, out=weight.grad)
        assert weight.grad is not None
        # y = W x / |W|, so that dL/d|W| = -y dL/dy / |W|, summed over the batch; d|W|/dW = W / |W|.
        radial = (gradient * self._outputs).sum(0).div_(self._norm)
        weight.grad.addcmul_(weight, radial.unsqueeze(-1), value=-1)
        return gradient if self._first else gradient.mm(weight)


class ScalerPass:
    def __init__(self, layer: Scaler) -> None:
        self._layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs, self._scale = inputs, self._layer.scaler * self._layer.factor
        return inputs * self._scale

    def backward(self, gradient: Tensor) -> Tensor:
        grad = self._layer.scaler.grad
        assert grad is not None
        torch.sum(gradient * self._inputs, 0, out=grad)
        grad.mul_(self._layer.factor)
        return gradient * self._scale


class NormalizePass:
    def forward(self, inputs: Tensor) -> Tensor:
        self._norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).clamp_(min=EPS)
        outputs: Tensor = inputs / self._norm
        self._outputs = outputs
        return outputs

    def backward(self, gradient: Tensor) -> Tensor:
        radial = (gradient * self._outputs).sum(-1, keepdim=True)
        return torch.addcmul(gradient, self._outputs, radial, value=-1).div_(self._norm)


class LERPBlockPass:
    def __init__(self, block: LERPBlock) -> None:
        self._expand, self._scaler = HypersphericalLinearPass(block.expand), ScalerPass(block.scaler)
        self._contract, self._target = HypersphericalLinearPass(block.contract), NormalizePass()
        self._alpha, self._moved = ScalerPass(block.alpha), NormalizePass()

    def forward(self, inputs: Tensor) -> Tensor:
        self._hidden = self._scaler.forward(self._expand.forward(inputs)).relu_()
        target = self._target.forward(self._contract.forward(self._hidden + EPS))
        return self._moved.forward(self._alpha.forward(target - inputs).add_(inputs))

    def backward(self, gradient: Tensor) -> Tensor:
        for_sum = self._moved.backward(gradient)
        for_change = self._alpha.backward(for_sum)
        for_hidden = self._contract.backward(self._target.backward(for_change))
        for_hidden = _aten.threshold_backward(for_hidden, self._hidden, 0)
        through = self._expand.backward(self._scaler.backward(for_hidden))
        return through.add_(for_sum).sub_(for_change)


class FeatureNormPass:
    def __init__(self, network: SimBaV2) -> None:
        self._norm = network.feature_norm

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self._norm

    def backward(self, gradient: Tensor) -> Tensor:
        return gradient * self._norm


class EmbeddingPass:
    def __init__(self, network: SimBaV2, first: bool) -> None:
        self._network, self._first = network, first
        self._direction, self._projection = NormalizePass(), HypersphericalLinearPass(network.projection, first)
        self._scaler, self._features = ScalerPass(network.scaler), NormalizePass()

    def forward(self, inputs: Tensor) -> Tensor:
        direction = self._direction.forward(self._network.shifted(inputs))
        return self._features.forward(self._scaler.forward(self._projection.forward(direction)))

    def backward(self, gradient: Tensor) -> Tensor:
        moved = self._projection.backward(self._scaler.backward(self._features.backward(gradient)))
        return moved if self._first else self._direction.backward(moved)[:, :-1]
