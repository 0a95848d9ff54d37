"""Minibatch updates: the loop over epochs and minibatches, and the PPO and SPO update rule built on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor

from detent.algorithms.gradient_variance import Group
from detent.algorithms.losses import Metrics, PolicyLoss
from detent.algorithms.optimizer import AdamOptimizer, Optimizer
from detent.config import UpdateConfig
from detent.models.heads.base import Head
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages

MinibatchOutputs: TypeAlias = dict[str, Tensor]
"""Network outputs for a batch of transitions, by name; the first dimension of each is B."""


class Objective(Protocol):
    """What the minibatch loop minimizes."""

    def compute_gradients(self, minibatch: Batch, scale: float) -> MinibatchOutputs:
        """Write the gradient of `scale` times the loss, summed over transitions, to the parameters' `grad`."""
        ...

    def report(self, outputs: MinibatchOutputs, batch: Batch) -> Metrics:
        """Return scalars, or vectors over action dimensions, averaged over transitions.

        `batch` has no observations.
        """
        ...


class MinibatchUpdate:
    """The update rule of PPO and SPO: minibatch descent on the sum of policy loss, value loss and entropy bonus."""

    notes: tuple[str, ...] = ()

    def __init__(self, policy: Policy, policy_loss: PolicyLoss, config: UpdateConfig) -> None:
        self._policy, self._policy_loss, self._config = policy, policy_loss, config
        watched = [*policy.head.parameters(), *policy.actor.parameters()]
        self.optimizer = AdamOptimizer(list(policy.parameters()), config, watched, [policy])

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        """Run the epochs of one update; return its metrics, copied from the device in one transfer."""
        self.optimizer.learning_rate = learning_rate
        # Dropout and the like of a plug-in draw from torch's global numbers: seeded, and given back afterwards.
        with torch.random.fork_rng(devices=[batch.value.device] if batch.value.is_cuda else []):
            torch.manual_seed(generator.initial_seed())
            self._policy.train()
            try:
                return run_epochs(self.optimizer, batch, self, self._config, generator, extra_scalars)
            finally:
                self._policy.eval()

    @torch.enable_grad()
    def compute_gradients(self, minibatch: Batch, scale: float) -> MinibatchOutputs:
        loss, outputs = total_loss(self._policy, minibatch, self._policy_loss, self._config)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * (scale * len(minibatch)))
        return {name: output.detach() for name, output in outputs.items()}

    def report(self, outputs: MinibatchOutputs, batch: Batch) -> Metrics:
        return report(self._policy, outputs, batch, self._policy_loss, self._config)

    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.optimizer.load_state(state)

    def close(self) -> None:
        """Do nothing; no resources are held."""


class CriticRegression:
    """Minibatch descent on the critic's loss alone, for update rules that train the actor differently."""

    def __init__(self, policy: Policy, config: UpdateConfig) -> None:
        self._policy, self._config = policy, config
        parts = [policy.critic, policy.critic_head]
        self.optimizer = AdamOptimizer([p for part in parts for p in part.parameters()], config, modules=parts)

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        self.optimizer.learning_rate = learning_rate
        return run_epochs(self.optimizer, batch, self, self._config, generator, extra_scalars)

    @torch.enable_grad()
    def compute_gradients(self, minibatch: Batch, scale: float) -> MinibatchOutputs:
        outputs = {"critic_outputs": self._policy.critic_outputs(minibatch.observation)}
        loss = critic_report(self._policy, outputs, minibatch, self._config)["value_loss"]
        self.optimizer.zero_grad()
        torch.autograd.backward(loss * (scale * len(minibatch)))
        return {name: output.detach() for name, output in outputs.items()}

    def report(self, outputs: MinibatchOutputs, batch: Batch) -> Metrics:
        return critic_report(self._policy, outputs, batch, self._config)


def total_loss(
    policy: Policy, minibatch: Batch, policy_loss: PolicyLoss, config: UpdateConfig
) -> tuple[Tensor, MinibatchOutputs]:
    """Return the loss of one minibatch and the network outputs; advantages are used as given."""
    observation = policy.encode(minibatch.observation)
    params = policy.params(observation)
    log_ratio = policy.head.log_prob(params, minibatch.choice) - minibatch.log_prob
    entropy = policy.head.entropy(params)
    critic_outputs = policy.critic_outputs(observation)
    surrogate, _ = policy_loss(log_ratio.sum(-1), minibatch.advantages)
    value_loss = policy.critic_head.loss(critic_outputs, minibatch.returns, minibatch.value, config.value_clip)
    loss = surrogate + config.value_coef * value_loss - config.entropy_coef * entropy.sum(-1).mean()
    return loss, {"log_ratio": log_ratio, "entropy": entropy, "critic_outputs": critic_outputs}


@torch.no_grad()
def run_epochs(
    optimizer: Optimizer,
    batch: Batch,
    objective: Objective,
    config: UpdateConfig,
    generator: Generator | None,
    extra_scalars: Metrics | None = None,
    shared_order: Tensor | None = None,
) -> dict[str, float]:
    """Run epochs of minibatch descent; return metrics averaged over minibatches, plus the `extra_scalars`.

    In a group, every process calls this with the same batch and takes its shard of every minibatch. Metrics are
    computed once per epoch, from the outputs of all its minibatches.
    """
    group = optimizer.group
    minibatch_size = len(batch) // config.minibatches
    shard = group.shard(minibatch_size)
    rows = shard.stop - shard.start
    variance = optimizer.gradient_variance() if config.diagnostics else None
    epochs: list[Tensor] = []
    while len(epochs) < config.epochs:
        order = _draw_order(batch, generator, group, shared_order).view(config.minibatches, minibatch_size)
        epoch = batch
        if config.normalize_advantages:
            advantages = torch.empty_like(batch.advantages)
            advantages[order] = normalized_advantages(batch.advantages[order])
            epoch = replace(batch, advantages=advantages)
        shard_order = order[:, shard].flatten()
        outputs, norms = [], []
        for minibatch in epoch.minibatches(shard_order, rows):
            outputs.append(objective.compute_gradients(minibatch, 1 / minibatch_size))
            norms.append(optimizer.step(variance))
        joined = {name: torch.cat([part[name] for part in outputs]) for name in outputs[0]}
        metrics = objective.report(joined, replace(epoch, observation={}).select(shard_order))
        metrics["grad_norm"] = torch.stack(norms).mean()
        means = torch.cat([value.reshape(-1) for value in metrics.values()])
        epochs.append(group.sum(rows / minibatch_size * means))
        names = _names(metrics)
        if variance is not None:
            variance.end_epoch()
        # The only scalar read from the device in an epoch, and only if the check is enabled.
        if config.target_kl > 0 and epochs[-1][names.index("approx_kl")].item() > config.target_kl:
            break
    others = {**(variance.metrics() if variance else {}), **(extra_scalars or {})}
    numbers = torch.cat([torch.stack(epochs).mean(0), *(number.reshape(1) for number in others.values())]).tolist()
    return {**dict(zip([*names, *others], numbers, strict=True)), "epochs": float(len(epochs))}


def _draw_order(batch: Batch, generator: Generator | None, group: Group, shared_order: Tensor | None) -> Tensor:
    """Draw a new permutation of the batch, the same for every process of the group."""
    if shared_order is None:
        return torch.randperm(len(batch), generator=generator, device=batch.advantages.device)
    if group.rank == 0:
        shared_order.copy_(torch.randperm(len(batch), generator=generator))
    group.barrier()
    return shared_order


def _names(metrics: Metrics) -> list[str]:
    """Return a name for each number in `metrics`; entries of a vector are `name/0`, `name/1`, ..."""
    return [
        name if value.dim() == 0 else f"{name}/{i}" for name, value in metrics.items() for i in range(value.numel())
    ]


def report(
    policy: Policy, outputs: MinibatchOutputs, batch: Batch, policy_loss: PolicyLoss, config: UpdateConfig
) -> Metrics:
    """Return the terms of the loss and further metrics of policy and critic."""
    log_ratio, entropy = outputs["log_ratio"], outputs["entropy"]
    joint = log_ratio.sum(-1)
    surrogate, metrics = policy_loss(joint, batch.advantages)
    metrics |= {"policy_loss": surrogate, **critic_report(policy, outputs, batch, config)}
    metrics |= {"entropy": entropy.sum(-1).mean(), "approx_kl": sampled_kl(joint)}
    if config.diagnostics:
        metrics |= by_dimension(policy.head, outputs)
    return metrics


def critic_report(policy: Policy, outputs: MinibatchOutputs, batch: Batch, config: UpdateConfig) -> Metrics:
    """Return the critic's loss and the statistics of its head."""
    critic_outputs = outputs["critic_outputs"]
    loss = policy.critic_head.loss(critic_outputs, batch.returns, batch.value, config.value_clip)
    return {"value_loss": loss, **policy.critic_head.statistics(critic_outputs, batch.returns)}


def by_dimension(head: Head, outputs: MinibatchOutputs) -> Metrics:
    """Return metrics that are for diagnostics only, besides those of the gradient."""
    return {"approx_kl_by_dimension": sampled_kl(outputs["log_ratio"]), **head.statistics(outputs["entropy"])}


@torch.no_grad()
def sampled_kl(log_ratio: Tensor) -> Tensor:
    """Return E[r - 1 - log r] over the first dimension: a nonnegative estimate of KL(old || new) (Schulman)."""
    return (log_ratio.expm1() - log_ratio).mean(0)
