"""Rollout collection with hand-written forward passes, in one process or in several with their own environments."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Generator, Tensor

from detent.acceleration.likelihoods import draw
from detent.acceleration.manual_backprop import fuse, has_hooks
from detent.acceleration.worker_group import WorkerGroup, is_shared, shared_copy, shared_zeros
from detent.config import Config
from detent.envs import Episode, Observation, VectorEnv, divide
from detent.models.policy import Policy
from detent.rollouts.rollout import Rollout, allocate, collect
from detent.seeding import derive_seed


class FusedActor:
    """`Policy.act` without the overhead that modules and autograd add to small batches."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._network = policy, fuse(policy.actor)

    @torch.no_grad()
    def __call__(self, observation: Observation, generator: Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        policy = self._policy
        outputs = self._network.forward(policy.features(policy.normalize(observation)))
        choice, log_prob = draw(policy.head, outputs, generator)
        return choice, log_prob, policy.head.to_action(choice)


class AcceleratedCollector:
    """A faster `Collector`: environments, the observations to act on next, and the rollout buffer.

    In a group, each process acts in its own environments and fills its columns of the rollout buffer, which all
    processes share. No core idles while another acts; the only barriers are at the start and end of a rollout.
    """

    def __init__(self, policy: Policy, envs: VectorEnv, config: Config, processes: int = 1) -> None:
        """Set up collection; the first rollout forks workers, which need the policy's parameters in shared memory."""
        self._policy, self._envs, self._config = policy, envs, config
        self._act = FusedActor(policy)
        self._group = WorkerGroup(max(1, min(processes, envs.num_envs)), "rollout")
        if self._group.size > 1:
            for buffer in policy.buffers():
                buffer.data = shared_copy(buffer)
        self._parts: list[VectorEnv] = []
        self._observation: Observation = {}
        self._rollout: Rollout | None = None
        self._order = shared_zeros((2,), torch.int64)
        self._addresses: list[int] = []
        self._modules = self._current_modules()

    def collect(self, iteration: int, fresh: bool) -> Rollout:
        """Collect the rollout of `iteration`; `fresh` rebuilds the environments, as the first rollout always does."""
        group, started = self._group, self._rollout is not None
        if self._modules != self._current_modules():
            raise RuntimeError(
                "a module of the policy was replaced or hooked during the run, which the accelerated engine would not "
                "notice; train with --update.engine autograd"
            )
        if self._rollout is None:
            parts = [group.shard(self._envs.num_envs, rank) for rank in range(group.size)]
            self._parts = divide(self._envs, parts, self._config.threads)
            self._reset(iteration)
            self._rollout = self._allocate()
            self._require_shared_parameters()
            group.start(self._work)
        if self._addresses != self._current_addresses():
            raise RuntimeError(
                "the policy's parameters moved after the rollout processes had started, which would act on stale ones"
            )
        self._order[0], self._order[1] = iteration, fresh or not started
        group.barrier()
        if fresh and started:
            self._reset(iteration)
        part = self._fill(iteration)
        waiting = time.perf_counter()
        gathered = group.gather(as_dicts(part.episodes))
        self._rollout.episodes = [Episode(**fields) for episodes in gathered for fields in episodes]
        self._rollout.seconds = part.seconds
        self._rollout.seconds["simulate"] += time.perf_counter() - waiting
        return self._rollout

    def _current_modules(self) -> list[int]:
        """Return the ids of the policy's modules, to detect replaced ones; empty if any module has hooks."""
        return [] if has_hooks(self._policy) else [id(module) for module in self._policy.modules()]

    def _current_addresses(self) -> list[int]:
        """Return the parameters' addresses, which must not change while workers share them; empty without workers."""
        return [parameter.data_ptr() for parameter in self._policy.parameters()] if self._group.size > 1 else []

    def _require_shared_parameters(self) -> None:
        self._addresses = self._current_addresses()
        if self._group.size > 1 and not all(map(is_shared, self._policy.parameters())):
            raise RuntimeError(
                "the policy's parameters are not in shared memory, and rollout processes would act on stale ones; make "
                "the update rule, which moves them there, before the first rollout"
            )

    def _allocate(self) -> Rollout:
        """Allocate buffers for all environments, although only this process's first observations are known."""
        all_rows = torch.zeros(self._envs.num_envs, dtype=torch.int64)
        first = {key: value[all_rows] for key, value in self._observation.items()}
        rollout = allocate(self._policy, first, self._config.rollout_steps)
        return rollout.map(shared_copy) if self._group.size > 1 else rollout

    def _work(self) -> None:
        """Collect one rollout in a worker process."""
        iteration, fresh = self._order.tolist()
        if fresh:
            self._reset(iteration)
        self._group.gather(as_dicts(self._fill(iteration).episodes))

    def _reset(self, iteration: int) -> None:
        with self._group.pinned_core():
            seed = derive_seed(self._config.seed, "envs", iteration)
            self._observation = self._parts[self._group.rank].reset(seed)

    def _fill(self, iteration: int) -> Rollout:
        """Fill this process's columns of the rollout and return them."""
        assert self._rollout is not None
        rank = self._group.rank
        part = self._rollout.columns(self._group.shard(self._envs.num_envs))
        names = ("act", iteration, rank) if rank else ("act", iteration)
        generator = torch.Generator(self._policy.device).manual_seed(derive_seed(self._config.seed, *names))
        with self._group.pinned_core():
            envs = self._parts[rank]
            self._observation = collect(self._policy, envs, self._observation, part, generator, self._act)
        return part

    def close(self) -> None:
        self._group.close()
        for part in self._parts:
            part.close()
        self._envs.close()


def as_dicts(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [asdict(episode) for episode in episodes]
