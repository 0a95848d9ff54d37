"""Layers in plain NumPy, and what tests of several networks use."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def shaken(module: nn.Module) -> nn.Module:
    """The module in float64 with every parameter moved, also those that start at 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.double().parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def array(parameter: Tensor) -> Array:
    values: Array = parameter.detach().numpy()
    return values


def affine(x: Array, layer: nn.Module) -> Array:
    assert isinstance(layer, nn.Linear)
    return x @ array(layer.weight).T + array(layer.bias)


def layer_norm(x: Array, layer: nn.Module, eps: float = 1e-5) -> Array:
    assert isinstance(layer, nn.LayerNorm)
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    out: Array = scaled * array(layer.weight) + array(layer.bias)
    return out


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
