"""The interface of a policy loss, and finding the one a run asks for."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from detent.config import Config
from detent.registry import Registry

Metrics = dict[str, Tensor]

LOSSES = Registry(
    "loss", "detent.losses", {"ppo": "detent.algorithms.ppo:PPOLoss", "spo": "detent.algorithms.spo:SPOLoss"}
)


class PolicyLoss(Protocol):
    """What the policy is trained on: a function of log-ratios `[B]` and advantages `[B]`.

    A plug-in is made without arguments, or of its `Options`; autograd differentiates it.
    """

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """Return the mean over transitions, and further scalars to log."""
        ...


def make_policy_loss(config: Config) -> PolicyLoss:
    own = {"ppo": config.ppo, "spo": config.spo}
    arguments = [own[config.algo]] if config.algo in own else []
    loss: PolicyLoss = LOSSES.make(config.algo, *arguments, options=config.update.options, setting="update.options")
    return loss
