from __future__ import annotations

import pytest
import torch
from torch import Tensor

from detent.config import Config, EnvConfig
from detent.config.presets import configure
from detent.envs import make_envs
from detent.models.policy import Policy
from detent.rollouts.collector import Collector
from detent.rollouts.rollout import Rollout, allocate, collect
from detent.seeding import derive_seed

TARGET = "detent.envs.scripted:Target-v0"


def config_of(variant: str) -> Config:
    return configure(TARGET, variant=variant, overrides={"env.num_envs": 3, "rollout_steps": 14, "actor.width": 16})


def assert_same(found: Rollout, wanted: Rollout) -> None:
    assert torch.equal(found.observation["state"], wanted.observation["state"])
    for name, tensor in vars(found).items():
        if isinstance(tensor, Tensor):
            assert torch.equal(tensor, getattr(wanted, name)), name
    assert found.episodes == wanted.episodes


@pytest.mark.parametrize("variant", ["rn-d", "mlp-c"])
def test_it_goes_on_where_the_last_rollout_ended_unless_environments_are_to_be_fresh(variant: str) -> None:
    config = config_of(variant)
    envs, others = (make_envs(TARGET, EnvConfig(), 3, 1) for _ in range(2))
    policy = Policy(envs.spec, config)
    collector = Collector(policy, envs, config)
    observation = {"state": torch.zeros(0)}
    # The first rollout has fresh environments also where nobody asked for them.
    for iteration, fresh in ((4, False), (5, False), (6, True), (7, False)):
        rollout = collector.collect(iteration, fresh)
        if fresh or iteration == 4:
            observation = others.reset(derive_seed(config.seed, "envs", iteration))
        wanted = allocate(policy, observation, config.rollout_steps)
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "act", iteration))
        observation = collect(policy, others, observation, wanted, generator)
        assert_same(rollout, wanted)
        assert set(rollout.seconds) == {"act", "simulate"}
    collector.close()
    others.close()


def test_buffers_are_made_once() -> None:
    config = config_of("rn-d")
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    collector = Collector(Policy(envs.spec, config), envs, config)
    first = collector.collect(0, fresh=True)
    assert first.reward.shape == (14, 3)
    assert collector.collect(1, fresh=True) is first
    collector.close()
