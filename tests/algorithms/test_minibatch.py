from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from detent.acceleration.likelihoods import LOSS_GRADIENTS
from detent.acceleration.update import AcceleratedMinibatchUpdate
from detent.algorithms.losses import Metrics, PolicyLoss
from detent.algorithms.minibatch import MinibatchUpdate, report, total_loss
from detent.algorithms.ppo import PPOLoss
from detent.config import ActorConfig, Config, CriticConfig, HeadConfig, PPOConfig, UpdateConfig
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

HeadKind = Literal["categorical", "gaussian"]
Engine = type[MinibatchUpdate] | type[AcceleratedMinibatchUpdate]
SIZE, BINS = 48, 5
every_head = pytest.mark.parametrize("kind", ["categorical", "gaussian"])
every_engine = pytest.mark.parametrize(
    "engine", [MinibatchUpdate, AcceleratedMinibatchUpdate], ids=["autograd", "accelerated"]
)


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
    engine: Engine, policy: Policy, batch: Batch, config: UpdateConfig, loss: PolicyLoss | None = None, seed: int = 0
) -> dict[str, float]:
    """One update from the beginning; PPO where no loss is given."""
    rule = engine(policy, loss or PPOLoss(PPOConfig()), config)
    return rule.update(batch, config.learning_rate, torch.Generator().manual_seed(seed))


def parameters_of(policy: Policy) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


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
            "approx_kl": (ratio - 1 - ratio.log()).mean().item(),
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


@every_engine
@every_head
@pytest.mark.parametrize("config", SETTINGS)
def test_update_is_the_plain_loop(config: UpdateConfig, kind: HeadKind, engine: Engine) -> None:
    policy = make_policy(kind)
    reference = Reference(policy, kind, config)
    rule = engine(policy, PPOLoss(PPOConfig()), replace(config, diagnostics=False))
    start = parameters_of(policy)
    for iteration in range(3):
        batch = make_batch(policy, seed=iteration)
        metrics = rule.update(batch, config.learning_rate, torch.Generator().manual_seed(iteration))
        generator = torch.Generator().manual_seed(iteration)
        rows = [row for _ in range(config.epochs) for row in reference.epoch(batch, generator)]
        assert_same_parameters(policy, reference, 1e-9)
        assert metrics.pop("epochs") == config.epochs
        assert metrics == pytest.approx(means(rows), rel=1e-6, abs=1e-9)
    assert (parameters_of(policy) - start).abs().max() > 0.05


@every_engine
def test_target_kl_stops_after_the_first_epoch_that_exceeds_it(engine: Engine) -> None:
    config = UpdateConfig(epochs=5, minibatches=4, learning_rate=0.004)
    policy = make_policy()
    batch = make_batch(policy)
    reference = Reference(policy, "categorical", config)
    generator = torch.Generator().manual_seed(0)
    kl = [means(reference.epoch(batch, generator))["approx_kl"] for _ in range(5)]
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
        metrics = update(engine, twin, batch, stopping)
        assert metrics["epochs"] == epochs
        assert metrics["approx_kl"] == pytest.approx(np.mean(kl[:epochs]), rel=1e-6)
        assert_same_parameters(twin, expected, 1e-9)


@every_engine
def test_target_kl_that_is_not_reached_or_zero_never_stops(engine: Engine) -> None:
    for target in (0.0, 1e9):
        policy = make_policy()
        config = UpdateConfig(epochs=4, minibatches=2, learning_rate=0.05, target_kl=target)
        metrics = update(engine, policy, make_batch(policy), config)
        assert metrics["epochs"] == 4


class Spy:
    """A policy loss that remembers the advantages of every minibatch."""

    def __init__(self) -> None:
        self.advantages: list[Tensor] = []

    def __call__(self, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        # Without a gradient it is asked for the metrics of a whole epoch.
        if log_ratio.requires_grad:
            self.advantages.append(advantages)
        return log_ratio.mean(), {}


def spy_gradient(spy: Spy, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """The closed form that the accelerated engine asks instead."""
    spy.advantages.append(advantages)
    return torch.ones_like(log_ratio)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    monkeypatch.setitem(LOSS_GRADIENTS, Spy, spy_gradient)
    return Spy()


@every_engine
def test_every_epoch_visits_every_transition_once_in_a_fresh_order(engine: Engine, spy: Spy) -> None:
    policy = make_policy()
    batch = replace(make_batch(policy), advantages=torch.arange(SIZE, dtype=torch.float64))
    config = UpdateConfig(epochs=3, minibatches=4, normalize_advantages=False)
    update(engine, policy, batch, config, spy)
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


@every_engine
def test_advantages_are_normalized_per_minibatch(engine: Engine, spy: Spy) -> None:
    policy = make_policy()
    config = UpdateConfig(epochs=1, minibatches=4)
    update(engine, policy, make_batch(policy), config, spy)
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


@every_engine
def test_the_update_lowers_the_loss_on_its_own_batch(engine: Engine) -> None:
    policy = make_policy()
    batch = make_batch(policy)
    config = UpdateConfig(epochs=10, minibatches=1, learning_rate=0.003)

    def losses() -> dict[str, float]:
        normalized = replace(batch, advantages=normalized_advantages(batch.advantages))
        loss, outputs = total_loss(policy, normalized, PPOLoss(PPOConfig()), config)
        metrics = report(policy, outputs, normalized, PPOLoss(PPOConfig()), config)
        assert loss.item() == pytest.approx((metrics["policy_loss"] + 0.5 * metrics["value_loss"]).item(), rel=1e-12)
        return {key: value.item() for key, value in metrics.items() if value.dim() == 0}

    before = losses()
    # Before the first step the ratio is 1: the surrogate is the mean of normalized advantages, and there is no KL.
    assert before["policy_loss"] == pytest.approx(0, abs=1e-12)
    assert before["approx_kl"] == pytest.approx(0, abs=1e-12)
    update(engine, policy, batch, config)
    after = losses()
    assert after["policy_loss"] < -0.02
    assert after["value_loss"] < before["value_loss"]
    assert after["approx_kl"] > 0


@every_engine
@every_head
def test_diagnostics_do_not_change_the_update(kind: HeadKind, engine: Engine) -> None:
    policies = [make_policy(kind), make_policy(kind)]
    batch = make_batch(policies[0])
    config = UpdateConfig(epochs=2, minibatches=4)
    plain = update(engine, policies[0], batch, replace(config, diagnostics=False))
    measured = update(engine, policies[1], batch, config)
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert {key: measured[key] for key in plain} == plain
    assert measured.keys() - plain.keys() == {
        "approx_kl_by_dimension/0", "approx_kl_by_dimension/1", "policy_grad_norm", "grad_variance",
        "grad_variance_normalized", "grad_snr", "grad_snr_paper", "grad_snr_local", "grad_variance_authors",
        *(["std"] if kind == "gaussian" else []),
    }  # fmt: skip


@every_engine
@every_head
def test_gradient_variance_is_that_of_the_actors_gradients_before_clipping(kind: HeadKind, engine: Engine) -> None:
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
    rule = engine(policy, PPOLoss(PPOConfig()), replace(config, weight_decay=0.0))
    metrics = rule.update(batch, 0.0, torch.Generator().manual_seed(0))
    traces = [np.var(gradients, axis=0, ddof=1).sum() for gradients in epochs]
    assert metrics["grad_variance"] == pytest.approx(np.mean(traces), rel=1e-9)
    pairs = [(gradients[0], gradients[1]) for gradients in epochs]
    signal, noise = sum(a @ b for a, b in pairs), sum(np.square(b - a).sum() / 2 for a, b in pairs)
    assert metrics["grad_snr_local"] == pytest.approx(signal / noise, rel=1e-9)
    everything = np.concatenate(epochs)
    assert metrics["grad_variance_authors"] == pytest.approx(np.var(everything, axis=0, ddof=1).mean(), rel=1e-9)
    assert metrics["policy_grad_norm"] == pytest.approx(np.linalg.norm(everything, axis=1).mean(), rel=1e-9)
    assert metrics["policy_grad_norm"] < metrics["grad_norm"], "the critic's is in the whole gradient only"


def test_kl_by_dimension_is_each_dimensions_own() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    # Only the first dimension's old log-probability differs: by log 2, so r = 1/2 and r - 1 - log r = log 2 - 1/2.
    shifted = replace(batch, log_prob=batch.log_prob + torch.tensor([np.log(2.0), 0.0], dtype=torch.float64))
    _, outputs = total_loss(policy, shifted, PPOLoss(PPOConfig()), UpdateConfig())
    metrics = report(policy, outputs, shifted, PPOLoss(PPOConfig()), UpdateConfig())
    np.testing.assert_allclose(metrics["approx_kl_by_dimension"], [np.log(2) - 0.5, 0.0], atol=1e-12)
