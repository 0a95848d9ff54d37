"""What a policy loss must be able to do."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

Metrics = dict[str, Tensor]


class PolicyLoss(Protocol):
    """What the policy is trained on: a function of log-ratios `[B]` and advantages `[B]`."""

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The mean over transitions, and what else there is to report."""
        ...

    def gradient(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        """The gradient `[B]` of the sum over transitions in the log-ratios; it spares the update autograd."""
        ...
