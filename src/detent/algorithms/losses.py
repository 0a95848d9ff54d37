"""The interface of policy losses, and the lookup of a run's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from detent.config import Config
from detent.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

Metrics: TypeAlias = "dict[str, Tensor]"

LOSSES = Registry(
    "loss",
    "detent.losses",
    {"ppo": "detent.algorithms.ppo:PPOLoss", "spo": "detent.algorithms.spo:SPOLoss"},
    reserved=("trpo", "td3"),
)


class PolicyLoss(Protocol):
    """The policy's training objective: a function of log-ratios `[B]` and advantages `[B]`.

    A plug-in is constructed without arguments, or with its `Options`; autograd differentiates it.
    """

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """Return the loss averaged over transitions, and further scalars to log."""
        ...


def make_policy_loss(config: Config) -> PolicyLoss:
    own = {"ppo": config.ppo, "spo": config.spo}
    arguments = [own[config.algo]] if config.algo in own else []
    loss: PolicyLoss = LOSSES.make(config.algo, *arguments, options=config.update.options, setting="update.options")
    return loss
