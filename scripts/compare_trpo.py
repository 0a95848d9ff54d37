"""Time TRPO's update against the same update with Fisher-vector products by double backpropagation.

python scripts/compare_trpo.py [--task HalfCheetah-v4] [--variant rn-d] [--threads 2] [--repeats 5]

The other version is written in the usual way: the gradient of the KL over the whole batch once, with its graph kept,
and each product a second backward pass through that graph. Both must arrive at the same parameters.
"""

from __future__ import annotations

import argparse
import copy
import time
from statistics import median

import torch
from torch import Generator, Tensor

from detent.algorithms.losses import Metrics
from detent.algorithms.trpo import TRPO
from detent.config.presets import configure
from detent.envs import env_spec
from detent.models.policy import Policy
from detent.rollouts.batch import Batch


class DoubleBackpropagation(TRPO):
    """TRPO with Fisher-vector products by differentiating the KL twice."""

    _kept: tuple[Batch, Tensor] | None = None

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        self._kept = None
        return super().update(batch, learning_rate, generator, extra_scalars)

    def fisher_product(self, batch: Batch, vector: Tensor, damping: float) -> Tensor:
        parameters = [*self.actor.policy.head.parameters(), *self.actor.policy.actor.parameters()]
        if self._kept is None or self._kept[0] is not batch:
            params = self.actor.policy.params(batch.observation)
            kl = self.actor.policy.head.kl(params.detach(), params).sum(-1).mean()
            pieces = torch.autograd.grad(kl, parameters, create_graph=True)
            self._kept = batch, torch.cat([piece.flatten() for piece in pieces])
        product = torch.autograd.grad(self._kept[1].dot(vector), parameters, retain_graph=True)
        return torch.cat([piece.flatten() for piece in product]) + damping * vector


@torch.no_grad()
def make_batch(policy: Policy, size: int, generator: Generator) -> Batch:
    """Make a batch of normally distributed observations and advantages, with actions sampled from the policy."""
    observation = {"state": torch.randn(size, policy.spec.observation.size, generator=generator)}
    params = policy.params(observation)
    choice = policy.head.sample(params, generator)
    advantages, returns = torch.randn(2, size, generator=generator)
    return Batch(
        observation, choice, policy.head.log_prob(params, choice), policy.value(observation), advantages, returns
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="HalfCheetah-v4")
    parser.add_argument("--variant", default="rn-d")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = configure(given.task, variant=given.variant, algo="trpo")
    policy = Policy(env_spec(config.task, config.env), config)
    batch = make_batch(policy, config.batch_size, torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {"detent": [], "double backpropagation": []}
    largest = 0.0
    for _ in range(given.repeats):
        results = []
        for name, kind in zip(seconds, (TRPO, DoubleBackpropagation), strict=True):
            rule = kind(copy.deepcopy(policy), config)
            start = rule.actor.flat.detach().clone()
            started = time.perf_counter()
            rule._step(batch, batch.advantages, torch.Generator())
            seconds[name].append(time.perf_counter() - started)
            results.append(rule.actor.flat.detach() - start)
        ours, theirs = results
        largest = max(largest, float(torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(ours)))
    for name, times in seconds.items():
        print(f"{name:24}{median(times):8.2f} s per actor update (from {min(times):.2f} to {max(times):.2f})")
    print(f"ratio {median(seconds['double backpropagation']) / median(seconds['detent']):.2f}")
    print(f"the two steps differ by {largest:.1e} of their length")


if __name__ == "__main__":
    main()
