"""What an update minimizes; a first-order update rule is a file and a line here."""

from __future__ import annotations

from detent.algorithms.losses import Metrics, PolicyLoss
from detent.algorithms.ppo import PPOLoss
from detent.algorithms.spo import SPOLoss
from detent.algorithms.value import value_gradient, value_loss
from detent.config import Config
from detent.rollouts.batch import Batch, normalized_advantages


def make_policy_loss(config: Config) -> PolicyLoss:
    losses: dict[str, PolicyLoss] = {"ppo": PPOLoss(config.ppo), "spo": SPOLoss(config.spo)}
    return losses[config.algo]


__all__ = [
    "Batch",
    "Metrics",
    "PPOLoss",
    "PolicyLoss",
    "SPOLoss",
    "make_policy_loss",
    "normalized_advantages",
    "value_gradient",
    "value_loss",
]
