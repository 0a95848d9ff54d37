"""Parameters and gradients as one flat vector."""

from __future__ import annotations

from torch import Tensor, nn


def views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Split a vector `[P]` into views with the parameters' shapes."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]


def attach(parameters: list[nn.Parameter], flat: Tensor) -> None:
    """Make `parameters` views of `flat` `[P]`."""
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.data = view


def attach_gradient(parameters: list[nn.Parameter], gradient: Tensor) -> None:
    """Make the gradients of `parameters` views of `gradient` `[P]`."""
    for parameter, view in zip(parameters, views(gradient, parameters), strict=True):
        parameter.grad = view
