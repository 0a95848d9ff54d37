"""First-order updates: one flat buffer of parameters and gradients, and the minibatch loop that runs a loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from detent.config import UpdateConfig
from detent.objectives import Metrics, PolicyLoss, value_loss
from detent.policy import Policy
from detent.spaces import Observation


@dataclass(frozen=True)
class Batch:
    """Transitions of one rollout as the update sees them; the first dimension of everything is B."""

    observation: Observation
    """Normalized."""
    choice: Tensor
    log_prob: Tensor
    """`[B, m]`, of the policy that collected."""
    value: Tensor
    advantages: Tensor
    returns: Tensor

    def select(self, index: Tensor | slice) -> Batch:
        return Batch(
            {key: value[index] for key, value in self.observation.items()},
            self.choice[index],
            self.log_prob[index],
            self.value[index],
            self.advantages[index],
            self.returns[index],
        )


class FlatAdam:
    """Adam on one flat parameter, of which the module's parameters become views.

    Clipping, the step and gradient statistics are then one operation each, whatever the number of layers.
    """

    def __init__(self, module: nn.Module, config: UpdateConfig) -> None:
        parameters = list(module.parameters())
        self.flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
        self.gradient = torch.zeros_like(self.flat)
        self.flat.grad = self.gradient
        offset = 0
        for parameter in parameters:
            span = slice(offset, offset + parameter.numel())
            parameter.data = self.flat.data[span].view_as(parameter)
            parameter.grad = self.gradient[span].view_as(parameter)
            offset = span.stop
        self.max_grad_norm = config.max_grad_norm
        self.adam = torch.optim.Adam(
            [self.flat], config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True
        )

    def step(self, loss: Tensor) -> Tensor:
        """Descend on `loss`; the norm of its whole gradient before clipping."""
        self.gradient.zero_()
        torch.autograd.backward(loss)
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self.max_grad_norm > 0:
            self.gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.adam.step()
        return norm

    def set_learning_rate(self, learning_rate: float) -> None:
        self.adam.param_groups[0]["lr"] = learning_rate

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step count; empty before the first step."""
        return {key: value.clone() for key, value in self.adam.state[self.flat].items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.adam.state[self.flat] = {key: value.clone() for key, value in state.items()}


def update(
    policy: Policy,
    optimizer: FlatAdam,
    batch: Batch,
    policy_loss: PolicyLoss,
    config: UpdateConfig,
    generator: Generator,
) -> dict[str, float]:
    """Epochs of minibatch descent on policy loss, value loss and entropy bonus; metrics averaged over minibatches."""
    size = len(batch.advantages)
    minibatch_size = size // config.minibatches
    totals: Tensor | None = None
    names: tuple[str, ...] = ()
    epochs = 0
    while epochs < config.epochs:
        epochs += 1
        order = torch.randperm(size, generator=generator, device=batch.advantages.device)
        shuffled = batch.select(order)
        sums: Tensor | None = None
        for start in range(0, size, minibatch_size):
            minibatch = shuffled.select(slice(start, start + minibatch_size))
            loss, metrics = total_loss(policy, minibatch, policy_loss, config)
            metrics["grad_norm"] = optimizer.step(loss)
            names = tuple(metrics)
            row = torch.stack([value.detach() for value in metrics.values()])
            sums = row if sums is None else sums.add_(row)
        assert sums is not None
        totals = sums if totals is None else totals + sums
        # The one scalar read of an epoch, and only where somebody asked for the check.
        if config.target_kl > 0 and sums[names.index("kl")].item() / config.minibatches > config.target_kl:
            break
    assert totals is not None
    means = (totals / (epochs * config.minibatches)).tolist()
    return {**dict(zip(names, means, strict=True)), "epochs": float(epochs)}


def total_loss(
    policy: Policy, minibatch: Batch, policy_loss: PolicyLoss, config: UpdateConfig
) -> tuple[Tensor, Metrics]:
    """What one minibatch step descends on, and what it measured."""
    params = policy.params(minibatch.observation)
    log_ratio = (policy.head.log_prob(params, minibatch.choice) - minibatch.log_prob).sum(-1)
    advantages = minibatch.advantages
    if config.normalize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate, metrics = policy_loss(log_ratio, advantages)
    value = policy.value(minibatch.observation)
    critic = value_loss(value, minibatch.value, minibatch.returns, config.value_clip)
    with torch.set_grad_enabled(config.entropy_coef > 0):
        entropy = policy.head.entropy(params).sum(-1).mean()
    loss = surrogate + config.value_coef * critic - config.entropy_coef * entropy
    with torch.no_grad():
        # E[r - 1 - log r], an estimate of KL(old || new) that is never negative (Schulman).
        kl = (log_ratio.exp() - 1 - log_ratio).mean()
    metrics |= {"policy_loss": surrogate, "value_loss": critic, "entropy": entropy, "kl": kl}
    return loss, metrics
