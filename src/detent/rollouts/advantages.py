"""Generalized advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
    bootstrap_on_termination: bool = False,
) -> Tensor:
    """Return advantages `[T, N]`; the value targets are `advantages + value`.

    All tensors are `[T, N]` except `last_value` `[N]`, the value of the observation after the last step. Where an
    episode was truncated, the return bootstraps from V(final observation) in `final_value`; where it terminated, the
    return ends, even if the episode was truncated at the same step.
    """
    ended = terminated | truncated
    bootstrapped = ended if bootstrap_on_termination else truncated & ~terminated
    next_value = torch.cat([value[1:], last_value[None]])
    next_value = torch.where(ended, torch.where(bootstrapped, final_value, 0.0), next_value)
    delta = reward + gamma * next_value - value
    carry = gamma * gae_lambda * (~ended).to(reward.dtype)
    advantages = torch.empty_like(reward)
    running = torch.zeros_like(last_value)
    for t in reversed(range(len(reward))):
        running = torch.addcmul(delta[t], carry[t], running, out=advantages[t])
    return advantages
