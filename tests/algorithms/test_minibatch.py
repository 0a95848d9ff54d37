from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from detent.acceleration.update import AcceleratedMinibatchUpdate
from detent.acceleration.worker_group import supported
from detent.algorithms.losses import Metrics, PolicyLoss
from detent.algorithms.minibatch import total_loss
from detent.algorithms.ppo import PPOLoss
from detent.config import ActorConfig, Config, CriticConfig, HeadConfig, PPOConfig, UpdateConfig
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

HeadKind = Literal["categorical", "gaussian"]
SIZE, BINS = 48, 5
every_head = pytest.mark.parametrize("kind", ["categorical", "gaussian"])


def make_policy(kind: HeadKind = "categorical", seed: int = 1) -> Policy:
    """A small float64 policy whose outputs are not almost zero."""
    spec = EnvSpec(ObservationSpec(4), ActionSpec((-3.0, 0.0), (-1.0, 10.0)))
    config = Config(
        seed=seed,
        actor=ActorConfig(kind="rn", width=8, depth=1),
        critic=CriticConfig(width=8),
        head=HeadConfig(kind=kind, bins=BINS),
    )
    policy = Policy(spec, config).double()
    last = policy.actor[1]
    assert isinstance(last, nn.Linear)
    last.weight.data *= 100
    return policy


def update(
    policy: Policy, batch: Batch, config: UpdateConfig, loss: PolicyLoss | None = None, seed: int = 0
) -> dict[str, float]:
    """One update from the beginning; PPO where no loss is given."""
    rule = AcceleratedMinibatchUpdate(policy, loss or PPOLoss(PPOConfig()), config)
    return rule.update(batch, config.learning_rate, torch.Generator().manual_seed(seed))


@torch.no_grad()
def make_batch(policy: Policy, seed: int = 0) -> Batch:
    """What a rollout of the policy as it is now would leave, with random advantages and returns."""
    generator = torch.Generator().manual_seed(seed)
    observation = {"state": torch.randn(SIZE, 4, generator=generator, dtype=torch.float64)}
    params = policy.params(observation)
    choice = policy.head.sample(params, generator)
    advantages, returns = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
    log_prob, value = policy.head.log_prob(params, choice), policy.value(observation)
    return Batch(observation, choice, log_prob, value, 3 * advantages + 1, 2 * returns)


class Reference:
    """The same update, written plainly: one tensor per parameter, torch's optimizer, clipping and distributions."""

    def __init__(self, policy: Policy, kind: HeadKind, config: UpdateConfig) -> None:
        self.kind, self.config = kind, config
        self.actor, self.critic = copy.deepcopy(policy.actor), copy.deepcopy(policy.critic)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        if kind == "gaussian":
            self.log_std = nn.Parameter(torch.zeros(2, dtype=torch.float64))
            self.parameters.append(self.log_std)
        self.adam = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay, foreach=False
        )

    def distribution(self, state: Tensor) -> Any:
        outputs = self.actor(state)
        if self.kind == "categorical":
            return Categorical(logits=outputs.reshape(-1, 2, BINS))
        return Normal(outputs, self.log_std.exp())

    def minibatch(self, batch: Batch, rows: Tensor) -> dict[str, float]:
        config = self.config
        law = self.distribution(batch.observation["state"][rows])
        log_prob: Tensor = law.log_prob(batch.choice[rows])
        ratio = torch.exp(log_prob.sum(-1) - batch.log_prob[rows].sum(-1))
        advantages = batch.advantages[rows]
        if config.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
        surrogate = torch.min(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)
        value = self.critic(batch.observation["state"][rows])[:, 0]
        old, target = batch.value[rows], batch.returns[rows]
        error = (value - target) ** 2
        if config.value_clip > 0:
            moved = old + (value - old).clip(-config.value_clip, config.value_clip)
            error = torch.max(error, (moved - target) ** 2)
        entropy: Tensor = law.entropy().sum(-1).mean()
        loss = -surrogate.mean() + config.value_coef * 0.5 * error.mean() - config.entropy_coef * entropy
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        largest = config.max_grad_norm if config.max_grad_norm > 0 else float("inf")
        norm = nn.utils.clip_grad_norm_(self.parameters, largest)
        self.adam.step()
        return {
            "policy_loss": -surrogate.mean().item(),
            "value_loss": 0.5 * error.mean().item(),
            "entropy": entropy.item(),
            "kl": (ratio - 1 - ratio.log()).mean().item(),
            "clip_fraction": ((ratio < 0.8) | (ratio > 1.2)).double().mean().item(),
            "grad_norm": norm.item(),
        }

    def epoch(self, batch: Batch, generator: torch.Generator) -> list[dict[str, float]]:
        order = torch.randperm(SIZE, generator=generator)
        return [self.minibatch(batch, rows) for rows in order.split(SIZE // self.config.minibatches)]


def means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def assert_same_parameters(policy: Policy, reference: Reference, tolerance: float) -> None:
    ours = [*policy.actor.parameters(), *policy.critic.parameters(), *policy.head.parameters()]
    for one, other in zip(ours, reference.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


SETTINGS = [
    UpdateConfig(epochs=3, minibatches=4, learning_rate=0.01),
    UpdateConfig(
        epochs=2, minibatches=3, learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.0, entropy_coef=0.3, value_clip=0
    ),
    UpdateConfig(epochs=2, minibatches=2, learning_rate=0.03, normalize_advantages=False, value_coef=2.0),
]


@every_head
@pytest.mark.parametrize("config", SETTINGS)
def test_update_is_the_plain_loop(config: UpdateConfig, kind: HeadKind) -> None:
    policy = make_policy(kind)
    reference = Reference(policy, kind, config)
    rule = AcceleratedMinibatchUpdate(policy, PPOLoss(PPOConfig()), replace(config, diagnostics=False))
    start = rule.optimizer.flat.detach().clone()
    for iteration in range(3):
        batch = make_batch(policy, seed=iteration)
        metrics = rule.update(batch, config.learning_rate, torch.Generator().manual_seed(iteration))
        generator = torch.Generator().manual_seed(iteration)
        rows = [row for _ in range(config.epochs) for row in reference.epoch(batch, generator)]
        assert_same_parameters(policy, reference, 1e-9)
        assert metrics.pop("epochs") == config.epochs
        assert metrics == pytest.approx(means(rows), rel=1e-6, abs=1e-9)
    assert (rule.optimizer.flat - start).abs().max() > 0.05


def test_target_kl_stops_after_the_first_epoch_that_exceeds_it() -> None:
    config = UpdateConfig(epochs=5, minibatches=4, learning_rate=0.004)
    policy = make_policy()
    batch = make_batch(policy)
    reference = Reference(policy, "categorical", config)
    generator = torch.Generator().manual_seed(0)
    kl = [means(reference.epoch(batch, generator))["kl"] for _ in range(5)]
    assert kl == sorted(kl)
    for epochs in (1, 2, 4):
        # Between the mean KL of the epoch before and that of the epoch that must be the last.
        target = (kl[epochs - 1] + (kl[epochs - 2] if epochs > 1 else 0)) / 2
        twin = copy.deepcopy(policy)
        expected = Reference(policy, "categorical", config)
        generator = torch.Generator().manual_seed(0)
        for _ in range(epochs):
            expected.epoch(batch, generator)
        stopping = replace(config, target_kl=target)
        metrics = update(twin, batch, stopping)
        assert metrics["epochs"] == epochs
        assert metrics["kl"] == pytest.approx(np.mean(kl[:epochs]), rel=1e-6)
        assert_same_parameters(twin, expected, 1e-9)


def test_target_kl_that_is_not_reached_or_zero_never_stops() -> None:
    for target in (0.0, 1e9):
        policy = make_policy()
        config = UpdateConfig(epochs=4, minibatches=2, learning_rate=0.05, target_kl=target)
        metrics = update(policy, make_batch(policy), config)
        assert metrics["epochs"] == 4


class Spy:
    """A policy loss that remembers the advantages of every minibatch."""

    def __init__(self) -> None:
        self.advantages: list[Tensor] = []

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        return log_ratio.mean(), {}

    def gradient(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        self.advantages.append(advantages)
        return torch.ones_like(log_ratio)


def test_every_epoch_visits_every_transition_once_in_a_fresh_order() -> None:
    policy, spy = make_policy(), Spy()
    batch = replace(make_batch(policy), advantages=torch.arange(SIZE, dtype=torch.float64))
    config = UpdateConfig(epochs=3, minibatches=4, normalize_advantages=False)
    update(policy, batch, config, spy)
    assert [len(minibatch) for minibatch in spy.advantages] == [SIZE // 4] * 12
    epochs = torch.cat(spy.advantages).reshape(3, SIZE)
    for order in epochs:
        assert sorted(order.tolist()) == list(range(SIZE))
    assert len({tuple(order.tolist()) for order in epochs}) == 3


def test_rows_of_a_batch_stay_together() -> None:
    batch = make_batch(make_policy())
    index = torch.tensor([5, 0, 5])
    chosen = batch.select(index)
    assert torch.equal(chosen.observation["state"], batch.observation["state"][index])
    for name in ("choice", "log_prob", "value", "advantages", "returns"):
        assert torch.equal(getattr(chosen, name), getattr(batch, name)[index]), name


def test_advantages_are_normalized_per_minibatch() -> None:
    policy, spy = make_policy(), Spy()
    config = UpdateConfig(epochs=1, minibatches=4)
    update(policy, make_batch(policy), config, spy)
    assert len(spy.advantages) == 4
    for advantages in spy.advantages:
        np.testing.assert_allclose(advantages.mean(), 0, atol=1e-9)
        np.testing.assert_allclose(np.std(advantages.numpy(), ddof=1), 1, rtol=1e-6)


@every_head
def test_the_entropy_bonus_has_a_gradient_only_where_it_has_a_weight(kind: HeadKind) -> None:
    policy = make_policy(kind)
    # Without advantages the surrogate is 0 everywhere: what remains of the actor's gradient is the entropy's.
    batch = replace(make_batch(policy), advantages=torch.zeros(SIZE, dtype=torch.float64))
    actor = [*policy.actor.parameters(), *policy.head.parameters()]

    def actor_gradient(entropy_coef: float) -> list[Tensor]:
        config = UpdateConfig(entropy_coef=entropy_coef)
        loss, _ = total_loss(policy, batch, PPOLoss(PPOConfig()), config)
        return list(torch.autograd.grad(loss, actor))

    assert all((gradient == 0).all() for gradient in actor_gradient(0.0))
    expected = torch.autograd.grad(
        policy.head.entropy(policy.params(batch.observation)).sum(-1).mean(), actor, materialize_grads=True
    )
    for gradient, by_itself in zip(actor_gradient(0.1), expected, strict=True):
        torch.testing.assert_close(gradient, -0.1 * by_itself, rtol=1e-9, atol=1e-12)
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 0


def test_the_update_lowers_the_loss_on_its_own_batch() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    config = UpdateConfig(epochs=10, minibatches=1, learning_rate=0.003)

    def losses() -> dict[str, float]:
        normalized = replace(batch, advantages=normalized_advantages(batch.advantages))
        _, metrics = total_loss(policy, normalized, PPOLoss(PPOConfig()), config)
        return {key: value.item() for key, value in metrics.items() if value.dim() == 0}

    before = losses()
    # Before the first step the ratio is 1: the surrogate is the mean of normalized advantages, and there is no KL.
    assert before["policy_loss"] == pytest.approx(0, abs=1e-12)
    assert before["kl"] == pytest.approx(0, abs=1e-12)
    update(policy, batch, config)
    after = losses()
    assert after["policy_loss"] < -0.02
    assert after["value_loss"] < before["value_loss"]
    assert after["kl"] > 0


@every_head
def test_diagnostics_do_not_change_the_update(kind: HeadKind) -> None:
    policies = [make_policy(kind), make_policy(kind)]
    batch = make_batch(policies[0])
    config = UpdateConfig(epochs=2, minibatches=4)
    plain = update(policies[0], batch, replace(config, diagnostics=False))
    measured = update(policies[1], batch, config)
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert {key: measured[key] for key in plain} == plain
    assert measured.keys() - plain.keys() == {
        "kl_by_dimension/0", "kl_by_dimension/1", "policy_grad_norm", "grad_variance", "grad_variance_normalized",
        "grad_snr", "grad_variance_authors", *(["std"] if kind == "gaussian" else []),
    }  # fmt: skip


@every_head
def test_gradient_variance_is_that_of_the_actors_gradients_before_clipping(kind: HeadKind) -> None:
    policy = make_policy(kind)
    batch = make_batch(policy)
    config = UpdateConfig(epochs=2, minibatches=4, max_grad_norm=0.01)
    actor = [*policy.head.parameters(), *policy.actor.parameters()]
    generator = torch.Generator().manual_seed(0)
    epochs = []
    for _ in range(2):
        gradients = []
        for rows in torch.randperm(SIZE, generator=generator).split(SIZE // 4):
            minibatch = batch.select(rows)
            minibatch = replace(minibatch, advantages=normalized_advantages(minibatch.advantages))
            loss, _ = total_loss(policy, minibatch, PPOLoss(PPOConfig()), config)
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, actor)]).numpy())
        epochs.append(gradients)
    # With a learning rate of 0 the parameters stay where these gradients were taken.
    rule = AcceleratedMinibatchUpdate(policy, PPOLoss(PPOConfig()), replace(config, weight_decay=0.0))
    metrics = rule.update(batch, 0.0, torch.Generator().manual_seed(0))
    traces = [np.var(gradients, axis=0, ddof=1).sum() for gradients in epochs]
    assert metrics["grad_variance"] == pytest.approx(np.mean(traces), rel=1e-9)
    everything = np.concatenate(epochs)
    assert metrics["grad_variance_authors"] == pytest.approx(np.var(everything, axis=0, ddof=1).mean(), rel=1e-9)
    assert metrics["policy_grad_norm"] == pytest.approx(np.linalg.norm(everything, axis=1).mean(), rel=1e-9)
    assert metrics["policy_grad_norm"] < metrics["grad_norm"], "the critic's is in the whole gradient only"


def test_kl_by_dimension_is_each_dimensions_own() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    # Only the first dimension's old log-probability differs: by log 2, so r = 1/2 and r - 1 - log r = log 2 - 1/2.
    shifted = replace(batch, log_prob=batch.log_prob + torch.tensor([np.log(2.0), 0.0], dtype=torch.float64))
    _, metrics = total_loss(policy, shifted, PPOLoss(PPOConfig()), UpdateConfig())
    np.testing.assert_allclose(metrics["kl_by_dimension"], [np.log(2) - 0.5, 0.0], atol=1e-12)


@pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)")
@every_head
@pytest.mark.parametrize("processes", [2, 5])
def test_processes_that_share_minibatches_do_the_same_update(processes: int, kind: HeadKind) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=0.01, entropy_coef=0.1)
    policies = [make_policy(kind), make_policy(kind)]
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
    target = 1.5 * update(twin, make_batch(twin), replace(config, epochs=1))["kl"]
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
    ("kind", "processes", "entropy_coef"),
    [
        ("categorical", 1, 0.1),
        pytest.param("gaussian", 2, 0.0, marks=pytest.mark.skipif(not supported(), reason="needs fork (Linux)")),
    ],
)
def test_compiled_updates_are_the_same_and_so_is_what_a_checkpoint_holds(
    kind: HeadKind, processes: int, entropy_coef: float
) -> None:
    config = UpdateConfig(epochs=2, minibatches=4, learning_rate=0.01, processes=processes, entropy_coef=entropy_coef)
    policies = [make_policy(kind), make_policy(kind)]
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
