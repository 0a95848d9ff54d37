"""A whole update rule: from a batch to better parameters, in whatever way."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from detent.config import Config
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages


class Reinforce:
    """One step of plain gradient descent on the whole batch: policy gradient and value regression."""

    notes: tuple[str, ...] = ("reinforce: one gradient step per iteration; update.epochs and minibatches do nothing.",)

    def __init__(self, policy: Policy, config: Config) -> None:
        self._policy, self._clip = policy, config.update.value_clip
        self._optimizer = torch.optim.SGD(policy.parameters())

    def update(
        self,
        batch: Batch,
        learning_rate: float,
        generator: Generator,
        extra_scalars: dict[str, Tensor] | None = None,
    ) -> dict[str, float]:
        policy = self._policy
        params = policy.params(batch.observation)
        log_prob = policy.head.log_prob(params, batch.choice).sum(-1)
        policy_loss = -(log_prob * normalized_advantages(batch.advantages)).mean()
        outputs = policy.critic_outputs(batch.observation)
        value_loss = policy.critic_head.loss(outputs, batch.returns, batch.value, self._clip)
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.zero_grad()
        torch.autograd.backward(policy_loss + value_loss)
        self._optimizer.step()
        entropy = policy.head.entropy(params).sum(-1).mean()
        scalars = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **(extra_scalars or {})}
        return {name: value.item() for name, value in scalars.items()}

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...
