"""Adam with gradient clipping, and the gradient statistics of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from detent.algorithms.gradient_variance import GradientVariance, Group, SingleProcess
from detent.config import UpdateConfig


class Optimizer(Protocol):
    """The optimizer interface that the minibatch loop uses."""

    learning_rate: float
    group: Group

    def gradient_variance(self) -> GradientVariance | None:
        """Return an accumulator for the gradients of one update; None if there are no actor parameters to watch."""
        ...

    def step(self, variance: GradientVariance | None = None) -> Tensor:
        """Take one step along the current gradients; return their global norm before clipping."""
        ...


@runtime_checkable
class AfterStep(Protocol):
    """A module whose parameters obey a constraint, which each step of an optimizer breaks a little."""

    def after_step(self) -> None:
        """Restore the constraint, in place."""
        ...


def constrained(*modules: nn.Module) -> list[AfterStep]:
    """Return the modules inside `modules` that have an `after_step`."""
    return [part for module in modules for part in module.modules() if isinstance(part, AfterStep)]


class AdamOptimizer:
    """torch's Adam on the trainable parameters; `GradientVariance` observes the gradients of those in `watched`.

    After each step it calls `after_step` of what `modules` contain.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        config: UpdateConfig,
        watched: list[nn.Parameter] | None = None,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self.group: Group = SingleProcess()
        self.learning_rate = config.learning_rate
        self._config = config
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._watched = [parameter for parameter in watched or [] if parameter.requires_grad]
        self._constrained = constrained(*modules)
        self._adam = torch.optim.Adam(
            self._parameters, lr=config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay
        )

    def zero_grad(self) -> None:
        """Set all gradients to zero, so that a parameter the loss does not reach has a zero gradient."""
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)

    def gradient_variance(self) -> GradientVariance | None:
        return GradientVariance(self._watched_gradient()) if self._watched else None

    def _watched_gradient(self) -> Tensor:
        """Return the gradient of the watched parameters as one vector `[P]`."""
        gradients = (p.grad if p.grad is not None else torch.zeros_like(p) for p in self._watched)
        return torch.cat([gradient.flatten() for gradient in gradients])

    def step(self, variance: GradientVariance | None = None) -> Tensor:
        if variance is not None:
            gradient = self._watched_gradient()
            variance.add(gradient, gradient.dot(gradient))
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm or math.inf)
        for group in self._adam.param_groups:
            group["lr"] = self.learning_rate
        self._adam.step()
        for module in self._constrained:
            module.after_step()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return Adam's step count and moments, each moment as one vector `[P]` in the order of the parameters."""
        slots = [self._adam.state.get(parameter, {}) for parameter in self._parameters]
        out = {"step": slots[0].get("step", torch.zeros(())).clone()}
        for name in ("exp_avg", "exp_avg_sq"):
            moments = (slot.get(name, torch.zeros_like(p)) for slot, p in zip(slots, self._parameters, strict=True))
            out[name] = torch.cat([moment.flatten() for moment in moments])
        return out

    def load_state(self, state: dict[str, Tensor]) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        moments = zip(state["exp_avg"].split(sizes), state["exp_avg_sq"].split(sizes), strict=True)
        for parameter, (exp_avg, exp_avg_sq) in zip(self._parameters, moments, strict=True):
            self._adam.state[parameter] = {
                "step": state["step"].detach().cpu().clone(),
                "exp_avg": exp_avg.view_as(parameter).clone(),
                "exp_avg_sq": exp_avg_sq.view_as(parameter).clone(),
            }
