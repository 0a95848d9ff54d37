"""What an update minimizes; a first-order update rule is a file and a line here."""

from __future__ import annotations

from detent.config import Config
from detent.objectives.batch import Batch, normalized_advantages
from detent.objectives.ppo import Metrics, PolicyLoss, ppo_loss
from detent.objectives.spo import spo_loss
from detent.objectives.value import value_loss


def make_policy_loss(config: Config) -> PolicyLoss:
    return {"ppo": ppo_loss(config.ppo), "spo": spo_loss(config.spo)}[config.algo]


__all__ = [
    "Batch",
    "Metrics",
    "PolicyLoss",
    "make_policy_loss",
    "normalized_advantages",
    "ppo_loss",
    "spo_loss",
    "value_loss",
]
