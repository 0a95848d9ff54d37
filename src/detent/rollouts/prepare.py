"""From a rollout to the batch that an update sees."""

from __future__ import annotations

from torch import Tensor

from detent.algorithms import Batch
from detent.config import AdvantageConfig
from detent.models.policy import Policy
from detent.rollouts.advantages import gae
from detent.rollouts.rollout import Rollout


def make_batch(policy: Policy, rollout: Rollout, reward: Tensor, config: AdvantageConfig) -> Batch:
    """Advantages estimated, time and environment flattened; `reward` `[T, N]` is the rollout's, scaled or raw."""
    advantages = gae(
        reward,
        rollout.value,
        rollout.last_value,
        rollout.final_value,
        rollout.terminated.to(policy.device),
        rollout.truncated.to(policy.device),
        config.gamma,
        config.gae_lambda,
        config.bootstrap_on_termination,
    )
    return Batch(
        observation={key: value.flatten(end_dim=1) for key, value in policy.normalize(rollout.observation).items()},
        choice=rollout.choice.flatten(end_dim=1),
        log_prob=rollout.log_prob.flatten(end_dim=1),
        value=rollout.value.flatten(),
        advantages=advantages.flatten(),
        returns=(advantages + rollout.value).flatten(),
    )
