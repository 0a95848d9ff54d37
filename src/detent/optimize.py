"""First-order updates: one flat buffer of parameters and gradients, and the minibatch loop that runs a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Generator, Tensor, nn

from detent.config import UpdateConfig
from detent.diagnostics import GradientSpread
from detent.objectives import Batch, Metrics, PolicyLoss, normalized_advantages, value_loss
from detent.policy import Policy

MinibatchLoss: TypeAlias = Callable[[Batch], tuple[Tensor, Metrics]]
"""A minibatch to the loss that is descended on and what it measured (scalars, or vectors over action dimensions)."""


class FlatAdam:
    """Adam on one flat parameter, of which the module's parameters become views.

    Clipping, the step and gradient statistics are then one operation each, whatever the number of layers. The first
    `watched` numbers are those whose gradient `GradientSpread` looks at: the actor's.
    """

    def __init__(self, module: nn.Module, config: UpdateConfig, watched: int = 0) -> None:
        self.flat, self.gradient = flatten(list(module.parameters()))
        self.max_grad_norm = config.max_grad_norm
        self.watched = watched
        self.adam = torch.optim.Adam(
            [self.flat], config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True
        )

    def step(self, loss: Tensor, spread: GradientSpread | None = None) -> Tensor:
        """Descend on `loss`; the norm of its whole gradient before clipping."""
        self.gradient.zero_()
        torch.autograd.backward(loss)
        watched, others = self.gradient[: self.watched], self.gradient[self.watched :]
        watched_norm: Tensor = torch.linalg.vector_norm(watched)
        norm = torch.hypot(watched_norm, torch.linalg.vector_norm(others))
        if spread is not None:
            spread.add(watched, watched_norm)
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


def flatten(parameters: list[nn.Parameter]) -> tuple[nn.Parameter, Tensor]:
    """One flat parameter and its gradient, of which `parameters` and their gradients become views."""
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    flat.grad = gradient = torch.zeros_like(flat)
    offset = 0
    for parameter in parameters:
        span = slice(offset, offset + parameter.numel())
        parameter.data = flat.data[span].view_as(parameter)
        parameter.grad = gradient[span].view_as(parameter)
        offset = span.stop
    return flat, gradient


class FirstOrder:
    """The update rule of PPO and SPO: minibatch descent on policy loss, value loss and entropy bonus together."""

    notes: tuple[str, ...] = ()

    def __init__(self, policy: Policy, policy_loss: PolicyLoss, config: UpdateConfig) -> None:
        self._policy, self._policy_loss, self._config = policy, policy_loss, config
        self.optimizer = FlatAdam(policy, config, watched=policy.num_actor_parameters)
        watched = self.optimizer.gradient[: self.optimizer.watched]
        self._spread = GradientSpread(watched) if config.diagnostics else None

    def update(self, batch: Batch, learning_rate: float, generator: Generator) -> dict[str, float]:
        self.optimizer.set_learning_rate(learning_rate)
        return descend(self.optimizer, batch, self._loss, self._config, generator, self._spread)

    def _loss(self, minibatch: Batch) -> tuple[Tensor, Metrics]:
        return total_loss(self._policy, minibatch, self._policy_loss, self._config)

    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.optimizer.load_state(state)


def descend(
    optimizer: FlatAdam,
    batch: Batch,
    loss: MinibatchLoss,
    config: UpdateConfig,
    generator: Generator,
    spread: GradientSpread | None = None,
) -> dict[str, float]:
    """Epochs of minibatch descent on `loss`; its metrics averaged over minibatches."""
    size = len(batch)
    minibatch_size = size // config.minibatches
    totals: Tensor | None = None
    metrics: Metrics = {}
    if spread is not None:
        spread.reset()
    epochs = 0
    while epochs < config.epochs:
        epochs += 1
        order = torch.randperm(size, generator=generator, device=batch.advantages.device)
        sums: Tensor | None = None
        for minibatch in batch.minibatches(order, minibatch_size):
            value, metrics = loss(minibatch)
            metrics["grad_norm"] = optimizer.step(value, spread)
            row = torch.cat([measured.detach().reshape(-1) for measured in metrics.values()])
            sums = row if sums is None else sums.add_(row)
        assert sums is not None
        totals = sums if totals is None else totals + sums
        if spread is not None:
            spread.end_epoch()
        # The one scalar read of an epoch, and only where somebody asked for the check.
        if config.target_kl > 0 and sums[_names(metrics).index("kl")].item() / config.minibatches > config.target_kl:
            break
    assert totals is not None
    names, means = _names(metrics), totals / (epochs * config.minibatches)
    if spread is not None:
        measured_spread = spread.metrics()
        names += list(measured_spread)
        means = torch.cat([means, torch.stack(list(measured_spread.values()))])
    return {**dict(zip(names, means.tolist(), strict=True)), "epochs": float(epochs)}


def _names(metrics: Metrics) -> list[str]:
    """A name for each number in `metrics`; those of a vector are `name/0`, `name/1`, ..."""
    return [
        name if value.dim() == 0 else f"{name}/{i}" for name, value in metrics.items() for i in range(value.numel())
    ]


def total_loss(
    policy: Policy, minibatch: Batch, policy_loss: PolicyLoss, config: UpdateConfig
) -> tuple[Tensor, Metrics]:
    """What one minibatch step descends on, and what it measured."""
    minibatch = replace(minibatch, observation=policy.encode(minibatch.observation))
    params = policy.params(minibatch.observation)
    log_ratio = policy.head.log_prob(params, minibatch.choice) - minibatch.log_prob
    advantages = minibatch.advantages
    if config.normalize_advantages:
        advantages = normalized_advantages(advantages)
    surrogate, metrics = policy_loss(log_ratio.sum(-1), advantages)
    critic = critic_loss(policy, minibatch, config)
    with torch.set_grad_enabled(config.entropy_coef > 0):
        entropy = policy.head.entropy(params).sum(-1).mean()
    loss = surrogate + config.value_coef * critic - config.entropy_coef * entropy
    metrics |= {"policy_loss": surrogate, "value_loss": critic, "entropy": entropy, "kl": sampled_kl(log_ratio.sum(-1))}
    if config.diagnostics:
        metrics |= {"kl_by_dimension": sampled_kl(log_ratio), **policy.head.statistics(params)}
    return loss, metrics


def critic_loss(policy: Policy, minibatch: Batch, config: UpdateConfig) -> Tensor:
    return value_loss(policy.value(minibatch.observation), minibatch.value, minibatch.returns, config.value_clip)


@torch.no_grad()
def sampled_kl(log_ratio: Tensor) -> Tensor:
    """E[r - 1 - log r] over the first dimension: an estimate of KL(old || new) that is never negative (Schulman)."""
    return (log_ratio.exp() - 1 - log_ratio).mean(0)
