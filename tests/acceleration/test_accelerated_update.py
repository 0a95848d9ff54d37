from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detent.acceleration.update import AcceleratedCriticRegression, AcceleratedMinibatchUpdate
from detent.acceleration.worker_group import supported
from detent.algorithms.losses import make_policy_loss
from detent.algorithms.minibatch import CriticRegression, MinibatchUpdate
from detent.algorithms.ppo import PPOLoss
from detent.algorithms.trpo import CriticUpdate
from detent.algorithms.update_rule import UpdateRule
from detent.config import ActorConfig, Config, CriticConfig, HeadConfig, PPOConfig, UpdateConfig
from detent.models.policy import Policy
from detent.rollouts.batch import Batch
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

SIZE = 48
SPEC = EnvSpec(ObservationSpec(4), ActionSpec((-3.0, 0.0), (-1.0, 10.0)))
every_head = pytest.mark.parametrize("kind", ["categorical", "gaussian"])
every_critic = pytest.mark.parametrize(
    ("critic", "value_clip"), [("scalar", 0.0), ("scalar", 0.2), ("hl-gauss", 0.0), ("two-hot", 0.0)]
)
every_precision = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])


def make_policy(
    head: str | dict[str, Any] = "categorical", dtype: torch.dtype = torch.float64, critic: str = "scalar"
) -> Policy:
    """A small policy whose outputs are not almost zero."""
    settings = {"kind": head} if isinstance(head, str) else head
    config = Config(
        seed=1,
        actor=ActorConfig(kind="rn", width=8, depth=1),
        critic=CriticConfig(width=8, head=critic),
        head=HeadConfig(**{"bins": 5, **settings}),
    )
    policy = Policy(SPEC, config).to(dtype)
    last = policy.actor[1]
    assert isinstance(last, nn.Linear)
    last.weight.data *= 100
    return policy


@torch.no_grad()
def make_batch(policy: Policy, seed: int = 0) -> Batch:
    """What a rollout of the policy as it is now would leave, with random advantages and returns."""
    generator, dtype = torch.Generator().manual_seed(seed), policy.normalizer.shift.dtype
    observation = {"state": torch.randn(SIZE, 4, generator=generator, dtype=dtype)}
    params = policy.params(observation)
    choice = policy.head.sample(params, generator)
    advantages, returns = torch.randn(2, SIZE, generator=generator, dtype=dtype)
    log_prob, value = policy.head.log_prob(params, choice), policy.value(observation)
    return Batch(observation, choice, log_prob, value, 3 * advantages + 1, 2 * returns)


def assert_same_parameters(policies: list[Policy], tolerance: float) -> None:
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


BOUNDED = {"kind": "gaussian", "log_std": "state-dependent", "log_std_min": -0.5, "log_std_max": 0.5}
HEADS: list[dict[str, Any]] = [
    {"kind": "categorical"},
    {"kind": "gaussian"},
    {"kind": "gaussian", "mean": "squashed", "log_std": "state-dependent"},
    BOUNDED,
    {"kind": "loss-swap"},
]


@every_precision
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize("algo", ["ppo", "spo"])
@pytest.mark.parametrize("head", HEADS, ids=str)
def test_both_engines_do_the_same_update(
    head: dict[str, Any], algo: str, entropy_coef: float, dtype: torch.dtype, tolerance: float
) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=1e-3, entropy_coef=entropy_coef)
    policies = [make_policy(head, dtype), make_policy(head, dtype)]
    loss = make_policy_loss(Config(algo=algo))
    rules: list[UpdateRule] = [
        MinibatchUpdate(policies[0], loss, config),
        AcceleratedMinibatchUpdate(policies[1], loss, config),
    ]
    before = torch.cat([parameter.detach().flatten() for parameter in policies[0].parameters()])
    batch = make_batch(policies[0])
    measured = [rule.update(batch, 1e-3, torch.Generator().manual_seed(0)) for rule in rules]
    assert measured[0].keys() == measured[1].keys()
    # What is measured adds up roundings of a whole update, and variances are differences of large sums.
    assert measured[1] == pytest.approx(measured[0], rel=10 * tolerance, abs=tolerance)
    assert_same_parameters(policies, tolerance)
    after = torch.cat([parameter.detach().flatten() for parameter in policies[0].parameters()])
    assert (after - before).abs().max() > 1e-3
    states = [rule.state() for rule in rules]
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], rtol=10 * tolerance, atol=tolerance)


def test_log_stds_beyond_either_bound_and_between_them_occur_in_the_comparison_of_engines() -> None:
    policy = make_policy(BOUNDED)
    log_std = policy.params(make_batch(policy).observation)[..., 1]
    for where in (log_std == -0.5, log_std.abs() < 0.5, log_std == 0.5):
        assert where.double().mean() > 0.1


@every_head
def test_an_update_goes_on_in_the_other_engine(kind: str) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=0.01)
    policies = [make_policy(kind), make_policy(kind)]
    engines: list[Any] = [MinibatchUpdate, AcceleratedMinibatchUpdate]
    states: list[dict[str, Tensor]] = []
    for iteration in range(4):
        # Each time from the checkpoint of the other one's last update.
        rules = [engine(policy, PPOLoss(PPOConfig()), config) for engine, policy in zip(engines, policies, strict=True)]
        if iteration:
            for rule, state in zip(rules, states, strict=True):
                rule.load_state(state)
        batch = make_batch(policies[0], seed=iteration)
        for rule in rules:
            rule.update(batch, 0.01, torch.Generator().manual_seed(iteration))
        assert_same_parameters(policies, 1e-9)
        states = [rule.state() for rule in rules]
        engines.reverse()
    assert states[0]["step"] == 4 * 2 * 4


@every_precision
@every_critic
def test_both_engines_regress_the_critic_alike(
    critic: str, value_clip: float, dtype: torch.dtype, tolerance: float
) -> None:
    config = UpdateConfig(epochs=3, minibatches=4, value_clip=value_clip)
    policies = [make_policy(dtype=dtype, critic=critic), make_policy(dtype=dtype, critic=critic)]
    actor = [parameter.detach().clone() for parameter in policies[0].actor.parameters()]
    before = [parameter.detach().clone() for parameter in policies[0].critic.parameters()]
    batch = make_batch(policies[0])
    rules: list[CriticUpdate] = [
        CriticRegression(policies[0], config),
        AcceleratedCriticRegression(policies[1], config),
    ]
    measured = [
        rule.update(batch, 1e-3, torch.Generator().manual_seed(0), {"extra": torch.tensor(3.0)}) for rule in rules
    ]
    assert measured[1] == pytest.approx(measured[0], rel=tolerance)
    own = policies[0].critic_head.statistics(torch.zeros(1, policies[0].critic_head.num_outputs), torch.zeros(1))
    assert measured[0].keys() == {"value_loss", "grad_norm", "epochs", "extra", *own}
    assert measured[0]["extra"] == 3
    assert_same_parameters(policies, tolerance)
    for policy in policies:
        for one, other in zip(policy.actor.parameters(), actor, strict=True):
            assert torch.equal(one, other), "the actor goes another way"
        for one, other in zip(policy.critic.parameters(), before, strict=True):
            assert not torch.equal(one, other)
    states = [rule.optimizer.state() for rule in rules]
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], rtol=10 * tolerance, atol=tolerance)


@every_critic
@pytest.mark.parametrize("algo", ["ppo", "spo"])
def test_both_engines_do_the_same_update_with_every_critic(critic: str, value_clip: float, algo: str) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=1e-3, value_clip=value_clip)
    policies = [make_policy(critic=critic), make_policy(critic=critic)]
    loss = make_policy_loss(Config(algo=algo))
    rules: list[UpdateRule] = [
        MinibatchUpdate(policies[0], loss, config),
        AcceleratedMinibatchUpdate(policies[1], loss, config),
    ]
    batch = make_batch(policies[0])
    measured = [rule.update(batch, 1e-3, torch.Generator().manual_seed(0)) for rule in rules]
    assert measured[0].keys() == measured[1].keys()
    assert ("value_saturation" in measured[0]) == (critic != "scalar")
    assert measured[1] == pytest.approx(measured[0], rel=1e-8, abs=1e-10)
    assert_same_parameters(policies, 1e-9)


@pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)")
@pytest.mark.parametrize(
    ("kind", "critic"),
    [("categorical", "scalar"), ("gaussian", "scalar"), ("categorical", "hl-gauss"), ("categorical", "two-hot")],
)
@pytest.mark.parametrize("processes", [2, 5])
def test_processes_that_share_minibatches_do_the_same_update(processes: int, kind: str, critic: str) -> None:
    value_clip = 0.2 if critic == "scalar" else 0.0
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=0.01, entropy_coef=0.1, value_clip=value_clip)
    policies = [make_policy(kind, critic=critic), make_policy(kind, critic=critic)]
    alone = AcceleratedMinibatchUpdate(policies[0], PPOLoss(PPOConfig()), config)
    # Twelve rows among five processes: parts of different size.
    shared = AcceleratedMinibatchUpdate(policies[1], PPOLoss(PPOConfig()), replace(config, processes=processes))
    try:
        for iteration in range(3):
            batch = make_batch(policies[0], seed=iteration)
            measured = [
                rule.update(batch, 0.01 / (iteration + 1), torch.Generator().manual_seed(iteration))
                for rule in (alone, shared)
            ]
            assert measured[1] == pytest.approx(measured[0], rel=1e-7)
            for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        states = [rule.state() for rule in (alone, shared)]
        for key, value in states[0].items():
            torch.testing.assert_close(value, states[1][key], rtol=1e-8, atol=1e-12)
    finally:
        shared.close()


@pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)")
def test_processes_stop_together_at_the_target_kl() -> None:
    config = UpdateConfig(epochs=5, minibatches=4, learning_rate=0.004)
    twin = make_policy()
    # The mean over one epoch, which the second epoch exceeds and the first does not.
    first = AcceleratedMinibatchUpdate(twin, PPOLoss(PPOConfig()), replace(config, epochs=1))
    target = 1.5 * first.update(make_batch(twin), 0.004, torch.Generator().manual_seed(0))["approx_kl"]
    epochs = []
    for processes in (1, 2):
        policy = make_policy()
        rule = AcceleratedMinibatchUpdate(
            policy, PPOLoss(PPOConfig()), replace(config, target_kl=target, processes=processes)
        )
        epochs.append(rule.update(make_batch(policy), 0.004, torch.Generator().manual_seed(0))["epochs"])
        rule.close()
    assert 1 < epochs[0] == epochs[1] < 5


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("kind", "processes", "entropy_coef", "critic"),
    [
        ("categorical", 1, 0.1, "scalar"),
        ("categorical", 1, 0.0, "hl-gauss"),
        ("categorical", 1, 0.0, "two-hot"),
        pytest.param(
            "gaussian", 2, 0.0, "scalar", marks=pytest.mark.skipif(not supported(), reason="needs fork (Linux)")
        ),
    ],
)
def test_compiled_updates_are_the_same_and_so_is_what_a_checkpoint_holds(
    kind: str, processes: int, entropy_coef: float, critic: str
) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=0.01, processes=processes, entropy_coef=entropy_coef)
    policies = [make_policy(kind, critic=critic), make_policy(kind, critic=critic)]
    rules = [
        AcceleratedMinibatchUpdate(policy, PPOLoss(PPOConfig()), replace(config, compile=compiled))
        for policy, compiled in zip(policies, (False, True), strict=True)
    ]
    try:
        for iteration in range(2):
            batch = make_batch(policies[0], seed=iteration)
            generators = [torch.Generator().manual_seed(iteration) for _ in rules]
            found = [rule.update(batch, 0.01, each) for rule, each in zip(rules, generators, strict=True)]
            assert found[1] == pytest.approx(found[0], rel=1e-7)
        states = [{**policy.state_dict(), **rule.state()} for policy, rule in zip(policies, rules, strict=True)]
        assert states[0].keys() == states[1].keys()
        for key, value in states[0].items():
            torch.testing.assert_close(value, states[1][key], rtol=1e-8, atol=1e-10)
    finally:
        for rule in rules:
            rule.close()
