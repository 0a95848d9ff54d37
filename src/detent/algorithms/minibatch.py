"""First-order updates: the minibatch loop that runs a loss, and the rule of PPO and SPO that it is for."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor

from detent.acceleration.flat_adam import FlatAdam
from detent.acceleration.manual_backprop import written_out
from detent.acceleration.worker_group import Team, shared_zeros
from detent.algorithms import (
    Batch,
    Metrics,
    PolicyLoss,
    normalized_advantages,
    value_gradient,
    value_loss,
)
from detent.config import UpdateConfig
from detent.models.heads import Head
from detent.models.policy import Policy

Seen: TypeAlias = dict[str, Tensor]
"""What the networks said about transitions, by name; the first dimension of everything is B."""


class Objective(Protocol):
    """What a minibatch loop descends on."""

    def differentiate(self, minibatch: Batch, scale: float) -> Seen:
        """Write the gradient of `scale` times the loss, summed over transitions, to the parameters' `grad`; called with
        autograd off."""
        ...

    def report(self, seen: Seen, batch: Batch) -> Metrics:
        """Scalars, or vectors over action dimensions, that are means over transitions; `batch` has no observations."""
        ...


class Compiled:
    """The same objective, differentiated by code that torch.compile makes at the first minibatch of each shape."""

    def __init__(self, objective: Objective) -> None:
        # Compiled in the process itself: threads that compile would not survive the fork of a team.
        self.differentiate = torch.compile(objective.differentiate, dynamic=False, options={"compile_threads": 1})
        self.report = objective.report


class FirstOrder:
    """The update rule of PPO and SPO: minibatch descent on policy loss, value loss and entropy bonus together."""

    notes: tuple[str, ...] = ()

    def __init__(self, policy: Policy, policy_loss: PolicyLoss, config: UpdateConfig) -> None:
        """`config.processes` share each minibatch; the others are forked by the first update."""
        self._policy, self._policy_loss, self._config = policy, policy_loss, config
        self._team = Team(max(1, config.processes))
        self.optimizer = FlatAdam(policy, config, policy.num_actor_parameters, self._team)
        images = policy.encoder.has_images
        self._actor, self._critic = written_out(policy.actor, images), written_out(policy.critic, images)
        self._objective: Objective = Compiled(self) if config.compile else self
        self._shared: Batch | None = None
        self._order = torch.empty(0)
        self._learning_rate = shared_zeros((1,), torch.float64)

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, also: Metrics | None = None
    ) -> dict[str, float]:
        """What was measured, with the scalars `also`: all of it is read from the device at once."""
        if self._team.size == 1:
            self.optimizer.learning_rate = learning_rate
            return descend(self.optimizer, batch, self._objective, self._config, generator, also)
        if self._shared is None:
            self._shared = batch.map(lambda tensor: shared_zeros(tensor.shape, tensor.dtype))
            self._order = shared_zeros((len(batch),), torch.int64)
            self._team.start(self._take_part)
        for there, tensor in zip(self._shared.tensors(), batch.tensors(), strict=True):
            there.copy_(tensor)
        self._learning_rate.fill_(learning_rate)
        self._team.meet()
        return self._take_part(generator, also)

    def _take_part(self, generator: Generator | None = None, also: Metrics | None = None) -> dict[str, float]:
        """One update on the shared batch; what every process of the team does. The first one draws the order."""
        assert self._shared is not None
        self.optimizer.bind()
        self.optimizer.learning_rate = self._learning_rate.item()
        return descend(self.optimizer, self._shared, self._objective, self._config, generator, also, self._order)

    def differentiate(self, minibatch: Batch, scale: float) -> Seen:
        """What autograd would make of `total_loss`, by the passes and closed forms of networks, head and losses."""
        encoder, config = self._policy.encoder, self._config
        # The convolutions are autograd's.
        with torch.enable_grad() if encoder.has_images else nullcontext():
            features = self._policy.features(minibatch.observation)
        inputs = features.detach()
        outputs, value = self._actor.forward(inputs), self._critic.forward(inputs).squeeze(-1)
        likelihood = self._policy.head.likelihood(outputs, minibatch.choice)
        log_ratio = likelihood.log_prob - minibatch.log_prob
        gradient = likelihood.backward(scale * self._policy_loss.gradient(log_ratio.sum(-1), minibatch.advantages))
        if config.entropy_coef > 0:
            gradient += self._entropy_backward(outputs, -scale * config.entropy_coef)
        for_actor = self._actor.backward(gradient)
        for_value = value_gradient(value, minibatch.value, minibatch.returns, config.value_clip)
        for_critic = self._critic.backward((scale * config.value_coef * for_value).unsqueeze(-1))
        if encoder.has_images:
            for parameter in encoder.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            torch.autograd.backward(features, for_actor + for_critic)
        return {"log_ratio": log_ratio, "value": value, "entropy": likelihood.entropy}

    def report(self, seen: Seen, batch: Batch) -> Metrics:
        return report(self._policy.head, seen, batch, self._policy_loss, self._config)

    @torch.enable_grad()
    def _entropy_backward(self, outputs: Tensor, weight: float) -> Tensor:
        """Gradient of the summed entropy in the network's outputs; that in the head's parameters is added to theirs."""
        head, leaf = self._policy.head, outputs.detach().requires_grad_()
        entropy = weight * head.entropy(head(leaf)).sum()
        gradient, *own = torch.autograd.grad(entropy, [leaf, *head.parameters()], materialize_grads=True)
        for parameter, own_gradient in zip(head.parameters(), own, strict=True):
            assert parameter.grad is not None
            parameter.grad.add_(own_gradient)
        return gradient

    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.optimizer.load_state(state)

    def close(self) -> None:
        self._team.close()


@torch.no_grad()
def descend(
    optimizer: FlatAdam,
    batch: Batch,
    objective: Objective,
    config: UpdateConfig,
    generator: Generator | None,
    also: Metrics | None = None,
    shared_order: Tensor | None = None,
) -> dict[str, float]:
    """Epochs of minibatch descent; what was measured, averaged over minibatches, and the scalars `also`.

    In a team every process runs this with the same batch, and takes its part of every minibatch. What there is to
    report is worked out once an epoch, from what the minibatches left.
    """
    team = optimizer.team
    size = len(batch) // config.minibatches
    mine = team.share(size)
    rows = mine.stop - mine.start
    spread = optimizer.new_spread() if config.diagnostics and optimizer.watched else None
    epochs: list[Tensor] = []
    while len(epochs) < config.epochs:
        order = _draw_order(batch, generator, team, shared_order).view(config.minibatches, size)
        epoch = batch
        if config.normalize_advantages:
            advantages = torch.empty_like(batch.advantages)
            advantages[order] = normalized_advantages(batch.advantages[order])
            epoch = replace(batch, advantages=advantages)
        my_order = order[:, mine].flatten()
        seen, norms = [], []
        for minibatch in epoch.minibatches(my_order, rows):
            seen.append(objective.differentiate(minibatch, 1 / size))
            norms.append(optimizer.step(spread))
        joined = {name: torch.cat([part[name] for part in seen]) for name in seen[0]}
        metrics = objective.report(joined, replace(epoch, observation={}).select(my_order))
        metrics["grad_norm"] = torch.stack(norms).mean()
        means = torch.cat([value.reshape(-1) for value in metrics.values()])
        epochs.append(team.sum(rows / size * means))
        names = _names(metrics)
        if spread is not None:
            spread.end_epoch()
        # The one scalar read of an epoch, and only where somebody asked for the check.
        if config.target_kl > 0 and epochs[-1][names.index("kl")].item() > config.target_kl:
            break
    others = {**(spread.metrics() if spread else {}), **(also or {})}
    numbers = torch.cat([torch.stack(epochs).mean(0), *(number.reshape(1) for number in others.values())]).tolist()
    return {**dict(zip([*names, *others], numbers, strict=True)), "epochs": float(len(epochs))}


def _draw_order(batch: Batch, generator: Generator | None, team: Team, shared_order: Tensor | None) -> Tensor:
    """A fresh permutation of the batch, the same in every process of the team."""
    if shared_order is None:
        return torch.randperm(len(batch), generator=generator, device=batch.advantages.device)
    if team.rank == 0:
        shared_order.copy_(torch.randperm(len(batch), generator=generator))
    team.meet()
    return shared_order


def _names(metrics: Metrics) -> list[str]:
    """A name for each number in `metrics`; those of a vector are `name/0`, `name/1`, ..."""
    return [
        name if value.dim() == 0 else f"{name}/{i}" for name, value in metrics.items() for i in range(value.numel())
    ]


def report(head: Head, seen: Seen, batch: Batch, policy_loss: PolicyLoss, config: UpdateConfig) -> Metrics:
    """The parts of the loss, and what else there is to tell about the policy."""
    log_ratio, entropy = seen["log_ratio"], seen["entropy"]
    joint = log_ratio.sum(-1)
    surrogate, metrics = policy_loss(joint, batch.advantages)
    metrics |= {
        "policy_loss": surrogate,
        "value_loss": value_loss(seen["value"], batch.value, batch.returns, config.value_clip),
        "entropy": entropy.sum(-1).mean(),
        "kl": sampled_kl(joint),
    }
    if config.diagnostics:
        metrics |= by_dimension(head, seen)
    return metrics


def by_dimension(head: Head, seen: Seen) -> Metrics:
    """What is measured for diagnosis only, besides the gradients."""
    return {"kl_by_dimension": sampled_kl(seen["log_ratio"]), **head.statistics(seen["entropy"])}


def total_loss(
    policy: Policy, minibatch: Batch, policy_loss: PolicyLoss, config: UpdateConfig
) -> tuple[Tensor, Metrics]:
    """What one minibatch step descends on, for autograd; advantages are taken as they are."""
    observation = policy.encode(minibatch.observation)
    params = policy.params(observation)
    seen = {
        "log_ratio": policy.head.log_prob(params, minibatch.choice) - minibatch.log_prob,
        "value": policy.value(observation),
        "entropy": policy.head.entropy(params),
    }
    metrics = report(policy.head, seen, minibatch, policy_loss, config)
    loss = metrics["policy_loss"] + config.value_coef * metrics["value_loss"]
    return loss - config.entropy_coef * metrics["entropy"], metrics


@torch.no_grad()
def sampled_kl(log_ratio: Tensor) -> Tensor:
    """E[r - 1 - log r] over the first dimension: an estimate of KL(old || new) that is never negative (Schulman)."""
    return (log_ratio.expm1() - log_ratio).mean(0)
