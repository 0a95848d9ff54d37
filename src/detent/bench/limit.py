"""The machine's limit: an iteration's matrix multiplications and simulation, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from detent.acceleration.worker_group import WorkerGroup, shared_zeros, supported
from detent.config import Config
from detent.envs import env_spec, make_envs
from detent.envs.envpool import first_core
from detent.models.policy import Policy

Layer = tuple[int, int]
"""Inputs and outputs of a linear layer."""


def layers_of(network: nn.Module) -> list[Layer]:
    """Return the linear layers in the order of the forward pass."""
    return [(part.in_features, part.out_features) for part in network.modules() if isinstance(part, nn.Linear)]


def forward_flops(layers: list[Layer], rows: int) -> int:
    """Count a multiplication and an addition for every weight and row."""
    return sum(2 * rows * inputs * outputs for inputs, outputs in layers)


def update_flops(layers: list[Layer], rows: int) -> int:
    """Count the forward pass, the gradients of the weights, and of the inputs except the first layer's."""
    return 2 * forward_flops(layers, rows) + forward_flops(layers[1:], rows)


def flops_of(config: Config) -> dict[str, int]:
    """Return the floating-point operations of one iteration's matrix multiplications."""
    actor, critic = networks_of(config)
    rows = config.batch_size // config.update.minibatches
    updates = config.update.epochs * config.update.minibatches
    return {
        "act": forward_flops(actor, config.batch_size) + forward_flops(critic, config.batch_size),
        "update": updates * (update_flops(actor, rows) + update_flops(critic, rows)),
    }


def networks_of(config: Config) -> tuple[list[Layer], list[Layer]]:
    """Return the layers of actor and critic."""
    policy = Policy(env_spec(config.task, config.env), config)
    return layers_of(policy.actor), layers_of(policy.critic)


class Multiplications:
    """The matrix multiplications of one network on `rows` rows."""

    def __init__(self, layers: list[Layer], rows: int, backward: bool) -> None:
        self._backward = backward
        self._layers = [
            (torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs))
            for inputs, outputs in layers
        ]
        self._to = [(torch.empty_like(x), torch.empty_like(w), torch.empty_like(y)) for x, w, y in self._layers]

    def run(self) -> None:
        for (inputs, weight, _), (_, _, outputs) in zip(self._layers, self._to, strict=True):
            torch.mm(inputs, weight.t(), out=outputs)
        if not self._backward:
            return
        for i in reversed(range(len(self._layers))):
            inputs, weight, gradient = self._layers[i]
            for_inputs, for_weight, _ = self._to[i]
            torch.mm(gradient.t(), inputs, out=for_weight)
            if i > 0:
                torch.mm(gradient, weight, out=for_inputs)


Share = Callable[[int], int]
"""Maps a total number of items to the number that one worker takes."""


@dataclass(frozen=True)
class Kind:
    """One kind of work that an iteration repeats."""

    part: str
    times: int
    make: Callable[[Share], Callable[[], object]]
    """Makes a function that does a share of the work once per call."""
    threads: frozenset[int]
    """Numbers of torch threads with which one process may do all of the work."""
    divisible: bool = True
    """Whether the work can be divided among processes."""


class Limit:
    """Measures the multiplications in their actual shapes and the simulator, in several ways; the fastest counts.

    The ways: `threads` threads inside each operation or the simulator; a process per thread, each with a share of the
    rows or environments; and, for the few rows of acting, also a single thread.
    """

    def __init__(self, config: Config) -> None:
        # Until the processes are forked: OpenMP's threads do not survive a fork.
        torch.set_num_threads(1)
        actor, critic = networks_of(config)
        rows = config.batch_size // config.update.minibatches
        updates = config.update.epochs * config.update.minibatches
        steps, envs, batch = config.rollout_steps, config.env.num_envs, config.batch_size
        all_threads = frozenset({config.threads})
        few_rows, one = all_threads | {1}, frozenset({1})
        self._kinds = [
            Kind("act", steps, lambda share: Multiplications(actor, share(envs), False).run, few_rows),
            Kind("act", 1, lambda share: Multiplications(critic, share(batch), False).run, few_rows),
            Kind("update", updates, lambda share: Multiplications(actor, share(rows), True).run, all_threads),
            Kind("update", updates, lambda share: Multiplications(critic, share(rows), True).run, all_threads),
            Kind(
                "simulate",
                steps,
                lambda share: simulator(config, share(envs), max(1, share(config.threads))),
                one,
                divisible=config.env.backend == "envpool" and envs >= config.threads,
            ),
        ]
        self._group = WorkerGroup(config.threads if supported() else 1)
        self._kind = shared_zeros((1,), torch.int64)
        self._shares: dict[int, Callable[[], object]] = {}
        self._group.start(self._work)
        self._whole = [kind.make(lambda total: total) for kind in self._kinds]

    @torch.no_grad()
    def one_slice(self) -> dict[str, float]:
        seconds = {kind.part: 0.0 for kind in self._kinds}
        for i, kind in enumerate(self._kinds):
            seconds[kind.part] += min(self._ways(i))
        return seconds

    def _ways(self, i: int) -> list[float]:
        kind, ways = self._kinds[i], []
        for threads in kind.threads:
            torch.set_num_threads(threads)
            ways.append(seconds_of(self._whole[i], kind.times))
        torch.set_num_threads(1)
        if self._group.size > 1 and kind.divisible:
            self._kind.fill_(i)
            self._group.barrier()
            ways.append(self._work())
        return ways

    def _work(self) -> float:
        """Do this process's share of one kind of work; return the seconds until all processes have done theirs."""
        i, group = int(self._kind.item()), self._group
        with group.pinned_core():
            if i not in self._shares:
                self._shares[i] = self._kinds[i].make(lambda total: len(range(total)[group.shard(total)]))
            group.barrier()
            started = time.perf_counter()
            seconds_of(self._shares[i], self._kinds[i].times)
            group.barrier()
            return time.perf_counter() - started

    def close(self) -> None:
        self._group.close()


def seconds_of(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started


def simulator(config: Config, num_envs: int, threads: int) -> Callable[[], object]:
    """Make a function that steps environments with random actions: EnvPool itself if it is used, else our adapter."""
    action = env_spec(config.task, config.env).action
    low, high = np.asarray(action.low), np.asarray(action.high)
    actions = np.random.default_rng(0).uniform(low, high, (64, num_envs, len(low)))
    turn = iter(range(10**12))
    if config.env.backend == "envpool":
        import envpool

        threads = min(threads, num_envs)
        pool: Any = envpool.make(
            config.task,
            env_type="gymnasium",
            num_envs=num_envs,
            num_threads=threads,
            thread_affinity_offset=first_core(threads),
            post_constraint=True,
            **config.env.kwargs,
        )
        pool.reset()
        return lambda: pool.step(actions[next(turn) % 64])
    envs = make_envs(config.task, config.env, num_envs, threads)
    envs.reset(0)
    tensors: Tensor = torch.from_numpy(actions).float()
    return lambda: envs.step(tensors[next(turn) % 64])
