"""Minibatch updates with hand-written passes on flat buffers, shared among worker processes."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Generator, Tensor

from detent.acceleration.critic_gradients import CRITIC_GRADIENTS
from detent.acceleration.flat_adam import FlatAdam
from detent.acceleration.likelihoods import LIKELIHOODS, LOSS_GRADIENTS
from detent.acceleration.manual_backprop import fuse
from detent.acceleration.worker_group import WorkerGroup, shared_zeros
from detent.algorithms.losses import Metrics, PolicyLoss
from detent.algorithms.minibatch import MinibatchOutputs, Objective, critic_report, report, run_epochs
from detent.config import UpdateConfig
from detent.models.policy import Policy
from detent.rollouts.batch import Batch


class Compiled:
    """An objective whose gradient code torch.compile generates at the first minibatch of each shape."""

    def __init__(self, objective: Objective) -> None:
        # Compile in this process: compiler threads would not survive the fork of a worker group.
        self.compute_gradients = torch.compile(
            objective.compute_gradients, dynamic=False, options={"compile_threads": 1}
        )
        self.report = objective.report


class AcceleratedMinibatchUpdate:
    """A faster `MinibatchUpdate`: the same loss, for modules that have a fast form."""

    notes: tuple[str, ...] = ()

    def __init__(self, policy: Policy, policy_loss: PolicyLoss, config: UpdateConfig) -> None:
        """Set up the update; `config.processes` processes share each minibatch, forked by the first update."""
        self._policy, self._policy_loss, self._config = policy, policy_loss, config
        self._group = WorkerGroup(max(1, config.processes))
        self.optimizer = FlatAdam(policy, config, policy.num_actor_parameters, self._group)
        self._shared_encoder = shared = policy.shares_encoder
        self._actor, self._critic = fuse(policy.actor, shared), fuse(policy.critic, shared)
        self._likelihood = LIKELIHOODS[type(policy.head)]
        self._loss_gradient = LOSS_GRADIENTS[type(policy_loss)]
        self._critic_gradient = CRITIC_GRADIENTS[type(policy.critic_head)]
        self._objective: Objective = Compiled(self) if config.compile else self
        self._shared_batch: Batch | None = None
        self._order = torch.empty(0)
        self._learning_rate = shared_zeros((1,), torch.float64)

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        """Run the epochs of one update; return its metrics, copied from the device in one transfer."""
        if self._group.size == 1:
            self.optimizer.learning_rate = learning_rate
            return run_epochs(self.optimizer, batch, self._objective, self._config, generator, extra_scalars)
        if self._shared_batch is None:
            self._shared_batch = batch.map(lambda tensor: shared_zeros(tensor.shape, tensor.dtype))
            self._order = shared_zeros((len(batch),), torch.int64)
            self._group.start(self._work)
        for shared, tensor in zip(self._shared_batch.tensors(), batch.tensors(), strict=True):
            shared.copy_(tensor)
        self._learning_rate.fill_(learning_rate)
        self._group.barrier()
        return self._work(generator, extra_scalars)

    def _work(self, generator: Generator | None = None, extra_scalars: Metrics | None = None) -> dict[str, float]:
        """Run one update on the shared batch, as every process of the group does; process 0 draws the permutations."""
        assert self._shared_batch is not None
        self.optimizer.bind()
        self.optimizer.learning_rate = self._learning_rate.item()
        return run_epochs(
            self.optimizer, self._shared_batch, self._objective, self._config, generator, extra_scalars, self._order
        )

    def compute_gradients(self, minibatch: Batch, scale: float) -> MinibatchOutputs:
        """Compute the gradients autograd would give for `total_loss`, with hand-written networks, head and losses."""
        policy, config, shared = self._policy, self._config, self._shared_encoder
        # Autograd handles the convolutions.
        with torch.enable_grad() if shared else nullcontext():
            features = policy.features(minibatch.observation)
        inputs = features.detach()
        outputs, critic_outputs = self._actor.forward(inputs), self._critic.forward(inputs)
        likelihood = self._likelihood(policy.head, outputs, minibatch.choice)
        log_ratio = likelihood.log_prob - minibatch.log_prob
        loss_gradient = self._loss_gradient(self._policy_loss, log_ratio.sum(-1), minibatch.advantages)
        gradient = likelihood.backward(scale * loss_gradient)
        if config.entropy_coef > 0:
            gradient += self._entropy_backward(outputs, -scale * config.entropy_coef)
        for_actor = self._actor.backward(gradient)
        critic_gradient = self._critic_gradient(
            policy.critic_head, critic_outputs, minibatch.returns, minibatch.value, config.value_clip
        )
        for_critic = self._critic.backward(scale * config.value_coef * critic_gradient)
        if shared:
            for parameter in policy.encoder.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            torch.autograd.backward(features, for_actor + for_critic)
        return {"log_ratio": log_ratio, "critic_outputs": critic_outputs, "entropy": likelihood.entropy}

    def report(self, outputs: MinibatchOutputs, batch: Batch) -> Metrics:
        return report(self._policy, outputs, batch, self._policy_loss, self._config)

    @torch.enable_grad()
    def _entropy_backward(self, outputs: Tensor, weight: float) -> Tensor:
        """Return the entropy's gradient in the network's outputs; add the head parameters' gradient to their `grad`."""
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
        self._group.close()


class AcceleratedCriticRegression:
    """A faster `CriticRegression`, for TRPO."""

    def __init__(self, policy: Policy, config: UpdateConfig) -> None:
        self._policy, self._config = policy, config
        self.optimizer = FlatAdam(policy.critic, config)
        self._critic = fuse(policy.critic)
        self._gradient = CRITIC_GRADIENTS[type(policy.critic_head)]

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        self.optimizer.learning_rate = learning_rate
        return run_epochs(self.optimizer, batch, self, self._config, generator, extra_scalars)

    def compute_gradients(self, minibatch: Batch, scale: float) -> MinibatchOutputs:
        policy, config = self._policy, self._config
        critic_outputs = self._critic.forward(policy.features(minibatch.observation))
        gradient = self._gradient(
            policy.critic_head, critic_outputs, minibatch.returns, minibatch.value, config.value_clip
        )
        self._critic.backward(scale * gradient)
        return {"critic_outputs": critic_outputs}

    def report(self, outputs: MinibatchOutputs, batch: Batch) -> Metrics:
        return critic_report(self._policy, outputs, batch, self._config)
