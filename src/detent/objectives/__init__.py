"""What an update minimizes; an update rule is a file and a line here."""

from __future__ import annotations

from detent.config import Config
from detent.objectives.ppo import Metrics, PolicyLoss, ppo_loss
from detent.objectives.value import value_loss


def make_policy_loss(config: Config) -> PolicyLoss:
    return ppo_loss(config.ppo)


__all__ = ["Metrics", "PolicyLoss", "make_policy_loss", "ppo_loss", "value_loss"]
