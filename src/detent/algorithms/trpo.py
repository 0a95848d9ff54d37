"""Trust region policy optimization: a natural-gradient step on the whole batch, as far as the KL allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from detent.algorithms.flat import attach, attach_gradient, views
from detent.algorithms.gradient_variance import GradientVariance
from detent.algorithms.losses import Metrics
from detent.algorithms.minibatch import CriticRegression
from detent.algorithms.optimizer import constrained
from detent.config import Config
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages
from detent.spec import Observation

_TINY = 1e-30
"""Keeps the quotient of two zeros at zero."""


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Solve `product(x) = target` approximately, for a symmetric positive definite product; return x and |residual|."""
    solution = torch.zeros_like(target)
    residual = target.clone()
    direction = target.clone()
    square = residual.dot(residual)
    for _ in range(iterations):
        image = product(direction)
        length = square / direction.dot(image).clamp(min=_TINY)
        solution.add_(length * direction)
        residual.sub_(length * image)
        next_square = residual.dot(residual)
        direction = residual + next_square / square.clamp(min=_TINY) * direction
        square = next_square
    return solution, square.sqrt()


class ActorFunction(nn.Module):
    """The actor as a function of its parameters, which form one flat vector `[P]`.

    An encoder shared with the critic is included: the trust region holds only if nothing else moves the encoder.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        parts = ("head", "actor", "encoder")
        named = [pair for part in parts for pair in getattr(policy, part).named_parameters(f"policy.{part}")]
        self._names = [name for name, _ in named]
        self._parameters_in_order = [parameter for _, parameter in named]
        self.flat = torch.cat([parameter.detach().flatten() for parameter in self._parameters_in_order])
        self.gradient = torch.zeros_like(self.flat)
        attach(self._parameters_in_order, self.flat)
        attach_gradient(self._parameters_in_order, self.gradient)

    def forward(self, observation: Observation) -> Tensor:
        return self.policy.params(observation)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Split a vector `[P]` into views with the parameters' shapes."""
        return views(vector, self._parameters_in_order)

    def at(self, vector: Tensor, observation: Observation) -> Tensor:
        """Return the distribution parameters `[B, m, P]` of the actor with `vector` as its parameters."""
        replaced: Tensor = functional_call(
            self, dict(zip(self._names, self.views(vector), strict=True)), (observation,)
        )
        return replaced

    def add_fisher_product(self, observation: Observation, tangent: Tensor, weight: float) -> None:
        """Add weight J^T M J tangent, summed over the states of `observation`, to `gradient`."""
        try:
            params, change = self._forward_mode(observation, tangent)
        except NotImplementedError:
            # A plug-in uses an operation that autograd can only differentiate backwards.
            params, change = self._double_backward(observation, tangent)
        torch.autograd.backward(params, weight * self.policy.head.fisher_product(params.detach(), change.detach()))

    def _forward_mode(self, observation: Observation, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution parameters and J tangent from one pass that carries values and tangents forward."""
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, self._parameters_in_order, self.views(tangent))
            outputs = functional_call(self, dict(zip(self._names, duals, strict=True)), (observation,))
            params, change = forward_ad.unpack_dual(outputs)
            assert change is not None
            return params, change.detach().clone()

    def _double_backward(self, observation: Observation, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution parameters and J tangent, as the derivative of J^T u with respect to u."""
        pairs = zip(self._parameters_in_order, self.views(tangent), strict=True)
        trained = [(parameter, part) for parameter, part in pairs if parameter.requires_grad]
        parameters, parts = zip(*trained, strict=True)
        params = self(observation)
        direction = torch.zeros_like(params, requires_grad=True)
        pulled = torch.autograd.grad(
            params, parameters, direction, create_graph=True, allow_unused=True, materialize_grads=True
        )
        (change,) = torch.autograd.grad(pulled, direction, parts, retain_graph=True)
        return params, change


class StatefulOptimizer(Protocol):
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...


class CriticUpdate(Protocol):
    """Trains the critic on a batch: `CriticRegression`, or a faster form of it."""

    @property
    def optimizer(self) -> StatefulOptimizer: ...

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]: ...


@dataclass(frozen=True)
class Measure:
    """The surrogate, KL and metrics by which a candidate step is judged, on the whole batch."""

    surrogate: float
    kl: float
    metrics: Metrics


class TRPO:
    """The update rule of TRPO; the critic is trained separately, by minibatch descent."""

    notes: tuple[str, ...] = (
        "trpo: the actor takes one step on the whole batch per iteration; update.epochs, minibatches, learning_rate, "
        "anneal, weight_decay and max_grad_norm act on the critic alone, value_coef on nothing.",
    )

    def __init__(self, policy: Policy, config: Config, critic: CriticUpdate | None = None) -> None:
        """Set up actor and critic; `critic` trains the critic, by default with autograd."""
        self._policy, self._config, self._update = policy, config.trpo, config.update
        self.actor = ActorFunction(policy)
        self.critic = critic or CriticRegression(policy, config.update)
        # The actor's own parameters come first, followed by those of a shared encoder.
        self._watched = self.actor.gradient[: policy.num_actor_parameters]
        self._constrained = constrained(policy.head, policy.actor, policy.encoder)

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        # Shuffle: random minibatches measure the gradient's variance, but neighbouring rows share a time step.
        batch = batch.select(torch.randperm(len(batch), generator=generator, device=batch.advantages.device))
        advantages = normalized_advantages(batch.advantages) if self._update.normalize_advantages else batch.advantages
        metrics = self._step(batch, advantages, generator)
        critic = self.critic.update(self._encoded(batch), learning_rate, generator, extra_scalars)
        return metrics | {"critic_grad_norm": critic.pop("grad_norm"), **critic}

    @torch.no_grad()
    def _encoded(self, batch: Batch) -> Batch:
        """Return the batch as the critic sees it after the step: through a shared encoder, which stays fixed."""
        if not self._policy.shares_encoder:
            return batch
        pieces = [self._policy.encode(chunk.observation) for chunk, _ in self._chunks(batch, batch.advantages)]
        return replace(batch, observation={key: torch.cat([piece[key] for piece in pieces]) for key in pieces[0]})

    def _step(self, batch: Batch, advantages: Tensor, generator: Generator) -> dict[str, float]:
        """Move the actor along the natural gradient, or not at all if no step length is acceptable."""
        config, damping = self._config, self._config.damping
        if config.calibrated:
            damping *= self.mean_eigenvalue(batch, generator)
        # All minibatches are at the old parameters, where the ratio over all of them is right as it is.
        variance = GradientVariance(self._watched, parameters_move=False) if self._update.diagnostics else None
        gradient, surrogate = self.surrogate_gradient(batch, advantages, variance)
        direction, residual = conjugate_gradient(
            lambda vector: self.fisher_product(batch, vector, damping), gradient, config.cg_iterations
        )
        # A damped length stays short of the bound by as much as the damping outweighs the matrix, which depends on the
        # head: a fresh softmax over 41 bins reaches .4 of the bound, a Gaussian .7 (docs/algorithms.md).
        measuring = 0.0 if config.calibrated else damping
        curvature = direction.dot(self.fisher_product(batch, direction, measuring)).clamp(min=_TINY)
        full_step = (2 * config.max_kl / curvature).sqrt() * direction
        fraction, measured = self._search(batch, advantages, surrogate, full_step)
        metrics = {
            "policy_loss": -measured.surrogate,
            "kl": measured.kl,
            "step_fraction": fraction,
            "line_search_failed": float(fraction == 0),
            "cg_residual": residual.item(),
        }
        for name, value in (measured.metrics | (variance.metrics() if variance else {})).items():
            if value.dim() == 0:
                metrics[name] = value.item()
            else:
                metrics |= {f"{name}/{i}": number for i, number in enumerate(value.tolist())}
        return metrics

    def surrogate_gradient(
        self, batch: Batch, advantages: Tensor, variance: GradientVariance | None = None
    ) -> tuple[Tensor, float]:
        """Return the gradient `[P]` of E[r A] at the current parameters, summed over minibatches, and the surrogate."""
        total = torch.zeros_like(self.actor.gradient)
        surrogate = advantages.new_zeros(())
        size = len(batch) // self._update.minibatches
        for start in range(0, len(batch), size):
            minibatch = slice(start, start + size)
            self.actor.gradient.zero_()
            for chunk, chunk_advantages in self._chunks(batch.select(minibatch), advantages[minibatch]):
                params = self._policy.params(chunk.observation)
                gain = (self._ratio(params, chunk) * chunk_advantages).sum() / size
                torch.autograd.backward(gain)
                surrogate += gain.detach() * size / len(batch)
            total.add_(self.actor.gradient, alpha=size / len(batch))
            if variance is not None:
                variance.add(self._watched, self._watched.dot(self._watched))
        if variance is not None:
            variance.end_epoch()
        return total, surrogate.item()

    def fisher_product(self, batch: Batch, vector: Tensor, damping: float) -> Tensor:
        """Return (F + damping I) vector, where F is the mean over states of J^T M J at the current parameters."""
        self.actor.gradient.zero_()
        for chunk, _ in self._chunks(batch, batch.advantages):
            self.actor.add_fisher_product(chunk.observation, vector, 1 / len(batch))
        return self.actor.gradient + damping * vector

    def mean_eigenvalue(self, batch: Batch, generator: Generator) -> float:
        """Return the mean eigenvalue of F, trace(F) / P, estimated as z.Fz / P with random signs z (Hutchinson)."""
        flat = self.actor.flat
        signs = torch.randint(0, 2, flat.shape, generator=generator, device=flat.device).to(flat.dtype) * 2 - 1
        return signs.dot(self.fisher_product(batch, signs, 0.0)).item() / len(flat)

    @torch.no_grad()
    def _search(self, batch: Batch, advantages: Tensor, surrogate: float, full_step: Tensor) -> tuple[float, Measure]:
        """Shorten the step until it improves the surrogate within the trust region; return the fraction taken.

        If no length does, the old parameters are restored bit for bit and the fraction is 0. A non-finite measure ends
        the search; the metrics built from it end the run if the surrogate is not finite, and warn otherwise.
        """
        old, coef = self.actor.flat.detach().clone(), self._config.backtrack_coef
        fraction = 1.0
        for i in range(self._config.max_backtracks):
            self.actor.flat.copy_(old + fraction * full_step)
            measured = self.measure(batch, advantages, old)
            if not (math.isfinite(measured.kl) and math.isfinite(measured.surrogate)):
                self.actor.flat.copy_(old)
                return 0.0, measured
            if measured.kl <= self._config.max_kl and measured.surrogate > surrogate:
                for module in self._constrained:
                    module.after_step()
                return fraction, measured
            fraction = self._shorter(fraction, measured.kl) if self._config.calibrated else coef ** (i + 1)
        self.actor.flat.copy_(old)
        return 0.0, self.measure(batch, advantages, old)

    def _shorter(self, fraction: float, kl: float) -> float:
        """Return the next step length to try: as long as a KL that grows with the square of the length allows."""
        coef, bound = self._config.backtrack_coef, self._config.max_kl
        return fraction * (max(coef, 0.99 * math.sqrt(bound / kl)) if kl > bound else coef)

    @torch.no_grad()
    def measure(self, batch: Batch, advantages: Tensor, old: Tensor) -> Measure:
        """Compare the current policy with the one that has the parameters `old` `[P]`, on the whole batch."""
        head = self._policy.head
        surrogate = advantages.new_zeros(())
        kl: Tensor | None = None
        weighted: dict[str, Tensor] = {}
        for chunk, chunk_advantages in self._chunks(batch, advantages):
            params = self._policy.params(chunk.observation)
            share = len(chunk) / len(batch)
            surrogate += share * (self._ratio(params, chunk) * chunk_advantages).mean()
            chunk_kl = share * head.kl(self.actor.at(old, chunk.observation), params).mean(0)
            kl = chunk_kl if kl is None else kl + chunk_kl
            entropy = head.entropy(params)
            for name, value in {"entropy": entropy.sum(-1).mean(), **head.statistics(entropy)}.items():
                weighted[name] = weighted.get(name, 0) + share * value
        assert kl is not None
        metrics = weighted | ({"kl_by_dimension": kl} if self._update.diagnostics else {})
        return Measure(surrogate.item(), kl.sum().item(), metrics)

    def _ratio(self, params: Tensor, batch: Batch) -> Tensor:
        return (self._policy.head.log_prob(params, batch.choice) - batch.log_prob).sum(-1).exp()

    def _chunks(self, batch: Batch, advantages: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the batch in chunks of at most `chunk` states, which bounds the memory of a pass."""
        for start in range(0, len(batch), self._config.chunk):
            piece = slice(start, start + self._config.chunk)
            yield batch.select(piece), advantages[piece]

    def state(self) -> dict[str, Tensor]:
        return self.critic.optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.critic.optimizer.load_state(state)

    def close(self) -> None:
        """Do nothing; no resources are held."""
