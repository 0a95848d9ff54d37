"""The machine's limit: an iteration's matrix multiplications and simulation, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from detent.config import Config
from detent.envs import make_envs, probe
from detent.envs.envpool import first_core
from detent.policy import Policy
from detent.spaces import EnvSpec
from detent.team import Team, shared_zeros, supported

Layer = tuple[int, int]
"""Inputs and outputs of a linear layer."""


def layers_of(network: nn.Module) -> list[Layer]:
    """In the order of the forward pass."""
    return [(part.in_features, part.out_features) for part in network.modules() if isinstance(part, nn.Linear)]


def forward_flops(layers: list[Layer], rows: int) -> int:
    """A multiplication and an addition for every weight and row."""
    return sum(2 * rows * inputs * outputs for inputs, outputs in layers)


def update_flops(layers: list[Layer], rows: int) -> int:
    """Forward, gradients of the weights, and gradients of the inputs except the first layer's."""
    return 2 * forward_flops(layers, rows) + forward_flops(layers[1:], rows)


def flops_of(config: Config) -> dict[str, int]:
    """Floating-point operations of one iteration's matrix multiplications."""
    actor, critic = networks_of(config)
    rows = config.batch_size // config.update.minibatches
    updates = config.update.epochs * config.update.minibatches
    return {
        "act": forward_flops(actor, config.batch_size) + forward_flops(critic, config.batch_size),
        "update": updates * (update_flops(actor, rows) + update_flops(critic, rows)),
    }


def networks_of(config: Config) -> tuple[list[Layer], list[Layer]]:
    """The layers of actor and critic."""
    policy = Policy(probe(config.task, config.env), config)
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


class Limit:
    """Measures each kind of multiplication on its own shapes, in several ways of which the fastest counts.

    The ways: `threads` threads inside each operation; a process per thread, each with a part of the rows; and for the
    few rows of acting also one thread.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # Until the processes are forked: OpenMP's threads do not survive that.
        torch.set_num_threads(1)
        actor, critic = networks_of(config)
        rows = config.batch_size // config.update.minibatches
        updates = config.update.epochs * config.update.minibatches
        # Layers, rows, whether backward, how often in a slice, and to which part they belong.
        self._kinds: list[tuple[list[Layer], int, bool, int, str]] = [
            (actor, config.env.num_envs, False, config.rollout_steps, "act"),
            (critic, config.batch_size, False, 1, "act"),
            (actor, rows, True, updates, "update"),
            (critic, rows, True, updates, "update"),
        ]
        self._team = Team(config.threads if supported() else 1)
        self._kind = shared_zeros((1,), torch.int64)
        self._whole = [Multiplications(layers, rows, backward) for layers, rows, backward, *_ in self._kinds]
        self._shares: list[Multiplications] = []
        if self._team.size > 1:
            self._team.start(self._take_part)
        self._simulate = simulator(config, probe(config.task, config.env))

    @torch.no_grad()
    def one_slice(self) -> dict[str, float]:
        seconds = {"act": 0.0, "update": 0.0, "simulate": seconds_of(self._simulate, self._config.rollout_steps)}
        for kind, (*_, part) in enumerate(self._kinds):
            seconds[part] += min(self._ways(kind))
        return seconds

    def _ways(self, kind: int) -> list[float]:
        _, _, backward, times, _ = self._kinds[kind]
        ways = []
        for threads in {self._config.threads} if backward else {1, self._config.threads}:
            torch.set_num_threads(threads)
            ways.append(seconds_of(self._whole[kind].run, times))
        torch.set_num_threads(1)
        if self._team.size > 1:
            self._kind.fill_(kind)
            self._team.meet()
            ways.append(self._take_part())
        return ways

    def _take_part(self) -> float:
        """This process's rows of one kind, and the seconds until all processes had done theirs."""
        if not self._shares:
            for layers, rows, backward, *_ in self._kinds:
                mine = self._team.share(rows)
                self._shares.append(Multiplications(layers, mine.stop - mine.start, backward))
        kind = int(self._kind.item())
        self._team.meet()
        started = time.perf_counter()
        seconds_of(self._shares[kind].run, self._kinds[kind][3])
        self._team.meet()
        return time.perf_counter() - started

    def close(self) -> None:
        self._team.close()


def seconds_of(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started


def simulator(config: Config, spec: EnvSpec) -> Callable[[], object]:
    """One step of all environments with random actions: EnvPool itself where it has the task, or our adapter."""
    low, high = np.asarray(spec.action.low), np.asarray(spec.action.high)
    actions = np.random.default_rng(0).uniform(low, high, (64, config.env.num_envs, len(low)))
    turn = iter(range(10**12))
    if config.env.backend == "envpool":
        import envpool

        threads = min(config.threads, config.env.num_envs)
        pool: Any = envpool.make(
            config.task,
            env_type="gymnasium",
            num_envs=config.env.num_envs,
            num_threads=threads,
            thread_affinity_offset=first_core(threads),
            post_constraint=True,
            **config.env.kwargs,
        )
        pool.reset()
        return lambda: pool.step(actions[next(turn) % 64])
    envs = make_envs(config.task, config.env, config.env.num_envs, config.threads)
    envs.reset(0)
    tensors: Tensor = torch.from_numpy(actions).float()
    return lambda: envs.step(tensors[next(turn) % 64])
