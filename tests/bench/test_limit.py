"""The arithmetic of the machine's limit."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from detent.bench.limit import Limit, Multiplications, flops_of, forward_flops, networks_of, update_flops
from detent.config.presets import configure
from detent.training.run import resolve


def test_flops_of_two_layers_by_hand() -> None:
    layers = [(3, 5), (5, 2)]
    # 10 rows: 2 x 10 x (15 + 10) forward, as many for the weights, 2 x 10 x 10 for the second layer's input.
    assert forward_flops(layers, 10) == 500
    assert update_flops(layers, 10) == 500 + 500 + 200


def test_layers_of_the_papers_networks() -> None:
    actor, critic = networks_of(configure("HalfCheetah-v4"))
    assert actor == [(17, 256), (256, 1024), (1024, 256), (256, 1024), (1024, 256), (256, 6 * 41)]
    assert critic == [(17, 64), (64, 1)]
    actor, _ = networks_of(configure("HalfCheetah-v4", variant="mlp-c"))
    assert actor == [(17, 256), (256, 256), (256, 6)]


def test_flops_of_the_papers_iteration_on_humanoid() -> None:
    flops = flops_of(configure("Humanoid-v4"))
    first, rest = 376 * 256, 4 * 256 * 1024 + 256 * 17 * 41
    critic_first, critic_rest = 376 * 64, 64
    # 16384 transitions, ten epochs; two operations for a weight and a row.
    assert flops["update"] == 10 * 16384 * 2 * (2 * first + 3 * rest + 2 * critic_first + 3 * critic_rest)
    assert flops["act"] == 16384 * 2 * (first + rest + critic_first + critic_rest)


def test_what_is_multiplied_is_what_is_counted() -> None:
    layers = [(3, 5), (5, 4), (4, 2)]
    for backward, expected in ((False, forward_flops(layers, 10)), (True, update_flops(layers, 10))):
        work = Multiplications(layers, 10, backward)
        with FlopCounterMode(display=False) as counter:
            work.run()
        assert counter.get_total_flops() == expected


@pytest.mark.parametrize(("threads", "envs"), [(1, 2), (2, 4), (2, 1)])
def test_the_limit_measures_every_part(threads: int, envs: int) -> None:
    overrides = {
        "threads": threads,
        "rollout_steps": 4,
        "env.num_envs": envs,
        "update.minibatches": 2,
        "update.epochs": 1,
        "device": "cpu",
    }
    before = torch.get_num_threads()
    limit = Limit(resolve(configure("HalfCheetah-v4", overrides=overrides)))
    try:
        seconds = limit.one_slice()
    finally:
        limit.close()
        torch.set_num_threads(before)
    assert set(seconds) == {"act", "update", "simulate"}
    assert all(value > 0 for value in seconds.values())
