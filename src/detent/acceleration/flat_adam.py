"""Adam on one flat buffer of parameters and one of gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detent.acceleration.worker_group import WorkerGroup, shared_zeros
from detent.algorithms.flat import attach, attach_gradient
from detent.algorithms.gradient_variance import GradientVariance, Group
from detent.algorithms.optimizer import constrained
from detent.config import UpdateConfig


class FlatAdam:
    """Adam on one flat parameter vector; the module's parameters become views of it.

    Clipping, the step and the gradient statistics are then one operation each, however many layers there are. In a
    group, each process computes the gradient of its shard of the minibatch and steps its shard of the parameters. The
    first `watched` entries are the actor's, whose gradient `GradientVariance` observes. After each step the processes
    share the calls of `after_step` among them, module by module, since a shard may end within a layer.
    """

    def __init__(
        self, module: nn.Module, config: UpdateConfig, watched: int = 0, group: WorkerGroup | None = None
    ) -> None:
        self.group: Group = group or WorkerGroup(1)
        self._parameters = list(module.parameters())
        self._config, self.watched = config, watched
        self.learning_rate = config.learning_rate
        self._constrained = constrained(module)
        like = torch.cat([p.detach().flatten() for p in self._parameters])
        self.flat, self._exp_avg, self._exp_avg_sq = (self._buffer(like) for _ in range(3))
        self.flat.copy_(like)
        self._gradients = [self._buffer(like) for _ in range(self.group.size)]
        # One step count per process; they are always equal.
        self._steps = [self._buffer(like.new_zeros((), dtype=torch.float32)) for _ in range(self.group.size)]
        attach(self._parameters, self.flat)
        self.bind()

    def _buffer(self, like: Tensor) -> Tensor:
        return shared_zeros(like.shape, like.dtype) if self.group.size > 1 else torch.zeros_like(like)

    @property
    def gradient(self) -> Tensor:
        """Return this process's gradient; `step` adds the other processes' gradients to process 0's."""
        return self._gradients[self.group.rank]

    def bind(self) -> None:
        """Make the parameters' gradients views of this process's `gradient`, and select its shard of every buffer."""
        attach_gradient(self._parameters, self.gradient)
        part = self.group.shard(len(self.flat))
        everything = (self.flat, self._exp_avg, self._exp_avg_sq, *self._gradients)
        self._part, self._part_avg, self._part_sq, *self._part_gradients = (vector[part] for vector in everything)
        self._watched, self._others = self._part_gradients[0].tensor_split([max(0, self.watched - part.start)])

    def gradient_variance(self) -> GradientVariance | None:
        return GradientVariance(self._watched, self.watched, self.group) if self.watched else None

    def step(self, variance: GradientVariance | None = None) -> Tensor:
        """Sum the gradient over processes and take one Adam step; return the global norm before clipping."""
        group, config = self.group, self._config
        group.barrier()
        gradient, *others = self._part_gradients
        for other in others:
            gradient.add_(other)
        squares = group.sum(torch.stack([self._watched.dot(self._watched), self._others.dot(self._others)]))
        norm = squares.sum().sqrt_()
        if variance is not None:
            variance.add(self._watched, squares[0])
        if config.max_grad_norm > 0:
            gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        step = self._steps[group.rank].add_(1)
        # The kernel behind torch.optim.Adam(fused=True), without the bookkeeping for many parameters.
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
        group.barrier()
        if self._constrained:
            for module in self._constrained[group.rank :: group.size]:
                module.after_step()
            group.barrier()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return Adam's moments and step count."""
        state = {"step": self._steps[0], "exp_avg": self._exp_avg, "exp_avg_sq": self._exp_avg_sq}
        return {key: value.clone() for key, value in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._exp_avg.copy_(state["exp_avg"])
        self._exp_avg_sq.copy_(state["exp_avg_sq"])
        for steps in self._steps:
            steps.copy_(state["step"])
