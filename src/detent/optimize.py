"""First-order updates: one flat buffer of parameters and gradients, and the minibatch loop that runs a loss."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor, nn

from detent.backprop import written_out
from detent.config import UpdateConfig
from detent.diagnostics import GradientSpread
from detent.heads import Head
from detent.objectives import (
    Batch,
    Metrics,
    PolicyLoss,
    normalized_advantages,
    value_gradient,
    value_loss,
)
from detent.policy import Policy
from detent.team import Team, shared_zeros

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


class FlatAdam:
    """Adam on one flat parameter, of which the module's parameters become views.

    Clipping, the step and gradient statistics are then one operation each, whatever the number of layers. In a team
    every process has a gradient of its own, of its part of the minibatch, and steps its part of the parameters. The
    first `watched` numbers are those whose gradient `GradientSpread` looks at: the actor's.
    """

    def __init__(self, module: nn.Module, config: UpdateConfig, watched: int = 0, team: Team | None = None) -> None:
        self.team = team or Team(1)
        self._parameters = list(module.parameters())
        self._config, self.watched = config, watched
        self.learning_rate = config.learning_rate
        like = torch.cat([p.detach().flatten() for p in self._parameters])
        self.flat, self._exp_avg, self._exp_avg_sq = (self._buffer(like) for _ in range(3))
        self.flat.copy_(like)
        self._gradients = [self._buffer(like) for _ in range(self.team.size)]
        # One count for each process; they are always equal.
        self._steps = [self._buffer(like.new_zeros((), dtype=torch.float32)) for _ in range(self.team.size)]
        attach(self._parameters, self.flat)
        self.bind()

    def _buffer(self, like: Tensor) -> Tensor:
        return shared_zeros(like.shape, like.dtype) if self.team.size > 1 else torch.zeros_like(like)

    @property
    def gradient(self) -> Tensor:
        """This process's gradient, until `step` makes number 0's the sum of all."""
        return self._gradients[self.team.rank]

    def bind(self) -> None:
        """Make the parameters' gradients views of this process's `gradient`, and find its part of everything."""
        attach_gradient(self._parameters, self.gradient)
        part = self.team.share(len(self.flat))
        everything = (self.flat, self._exp_avg, self._exp_avg_sq, *self._gradients)
        self._part, self._part_avg, self._part_sq, *self._part_gradients = (vector[part] for vector in everything)
        self._watched, self._others = self._part_gradients[0].tensor_split([max(0, self.watched - part.start)])

    def new_spread(self) -> GradientSpread:
        return GradientSpread(self._watched, self.watched, self.team)

    def step(self, spread: GradientSpread | None = None) -> Tensor:
        """Descend along the gradient that is there; the norm of all of it before clipping."""
        team, config = self.team, self._config
        team.meet()
        gradient, *others = self._part_gradients
        for other in others:
            gradient.add_(other)
        squares = team.sum(torch.stack([self._watched.dot(self._watched), self._others.dot(self._others)]))
        norm = squares.sum().sqrt_()
        if spread is not None:
            spread.add(self._watched, squares[0])
        if config.max_grad_norm > 0:
            gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        step = self._steps[team.rank].add_(1)
        # What torch.optim.Adam(fused=True) calls, without its preparations for many parameters.
        torch._fused_adam_(
            [self._part],
            [gradient],
            [self._part_avg],
            [self._part_sq],
            [],
            [step],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=config.weight_decay,
            eps=config.adam_eps,
            amsgrad=False,
            maximize=False,
        )
        team.meet()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step count."""
        state = {"step": self._steps[0], "exp_avg": self._exp_avg, "exp_avg_sq": self._exp_avg_sq}
        return {key: value.clone() for key, value in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._exp_avg.copy_(state["exp_avg"])
        self._exp_avg_sq.copy_(state["exp_avg_sq"])
        for steps in self._steps:
            steps.copy_(state["step"])


def views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """A vector `[P]` as tensors of the parameters' shapes."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]


def attach(parameters: list[nn.Parameter], flat: Tensor) -> None:
    """Make `parameters` views of `flat` `[P]`."""
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.data = view


def attach_gradient(parameters: list[nn.Parameter], gradient: Tensor) -> None:
    """Make the gradients of `parameters` views of `gradient` `[P]`."""
    for parameter, view in zip(parameters, views(gradient, parameters), strict=True):
        parameter.grad = view


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
