"""The one-file example computes what Detent computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.spaces import Box
from torch import Tensor, nn

import detent
from detent.algorithms.minibatch import MinibatchUpdate, report, total_loss
from detent.algorithms.ppo import PPOLoss
from detent.envs.scripted import EPISODES, TargetEnv
from detent.models.normalize import ObservationNormalizer
from detent.models.normalize import RewardScaler as DetentRewardScaler
from detent.models.policy import Policy
from detent.rollouts.advantages import gae as detent_gae
from detent.rollouts.batch import Batch as DetentBatch
from detent.rollouts.batch import normalized_advantages
from detent.seeding import derive_seed
from detent.spec import ActionSpec, EnvSpec, ObservationSpec
from examples import ppo_rnd

TARGET, SCRIPTED = "detent.envs.scripted:Target-v0", "detent.envs.scripted:Scripted-v0"
LOW, HIGH = (-3.0, 0.0), (-1.0, 10.0)
SPEC = EnvSpec(ObservationSpec(4), ActionSpec(LOW, HIGH))
CONFIG = detent.configure(TARGET, preset="fast", overrides={"actor.width": 16, "head.bins": 7, "update.processes": 1})
SETTINGS = ppo_rnd.Settings(width=16, bins=7)


def make_actor() -> ppo_rnd.Actor:
    return ppo_rnd.Actor(4, Box(np.array(LOW, np.float32), np.array(HIGH, np.float32)), SETTINGS)


def make_policy() -> Policy:
    """A float64 policy whose distributions are far from uniform."""
    policy = Policy(SPEC, CONFIG).double()
    head = policy.actor[1]
    assert isinstance(head, nn.Linear)
    head.weight.data *= 100
    return policy


def parameters_of(actor: nn.Module, critic: nn.Module) -> list[nn.Parameter]:
    return [*actor.parameters(), *critic.parameters()]


def copy_to_example(policy: Policy) -> tuple[ppo_rnd.Actor, nn.Module]:
    """The example's networks with Detent's weights."""
    actor, critic = make_actor().double(), ppo_rnd.make_critic(4).double()
    originals = parameters_of(policy.actor, policy.critic)
    for parameter, original in zip(parameters_of(actor, critic), originals, strict=True):
        assert parameter.shape == original.shape
        parameter.data.copy_(original.data)
    return actor, critic


@torch.no_grad()
def make_batches(policy: Policy, noise: float, size: int = 64) -> tuple[DetentBatch, ppo_rnd.Batch]:
    """The same random transitions for both; `noise` is how far policy and critic have moved since the rollout."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    state = normal(size, 4)
    params = policy.params({"state": state})
    choice = policy.head.sample(params, generator)
    log_prob = policy.head.log_prob(params, choice) + noise * normal(size, 2)
    value = policy.value({"state": state}) + noise * normal(size)
    advantages, returns = 3 * normal(size) + 1, 2 * normal(size)
    return (
        DetentBatch({"state": state}, choice, log_prob, value, advantages, returns),
        ppo_rnd.Batch(state, choice.long(), log_prob.sum(-1), value, advantages, returns),
    )


def test_defaults_are_the_fast_preset() -> None:
    config = detent.configure("Hopper-v4", preset="fast")
    assert ppo_rnd.Settings() == ppo_rnd.Settings(
        task="Hopper-v4",
        steps=config.steps,
        schedule_steps=config.schedule_steps,
        seed=config.seed,
        num_envs=config.env.num_envs,
        rollout_steps=config.rollout_steps,
        bins=config.head.bins,
        width=config.actor.width,
        depth=config.actor.depth,
        gamma=config.advantage.gamma,
        gae_lambda=config.advantage.gae_lambda,
        epochs=config.update.epochs,
        minibatches=config.update.minibatches,
        learning_rate=config.update.learning_rate,
        clip=config.ppo.clip,
        value_clip=config.update.value_clip,
    )


def test_initial_weights_and_bins_equal_detents() -> None:
    policy = Policy(SPEC, CONFIG)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(CONFIG.seed, "init"))
        actor = make_actor()
        torch.manual_seed(derive_seed(CONFIG.seed, "init-critic"))
        critic = ppo_rnd.make_critic(4)
    originals = parameters_of(policy.actor, policy.critic)
    for parameter, original in zip(parameters_of(actor, critic), originals, strict=True):
        assert torch.equal(parameter, original)
    torch.testing.assert_close(actor.bins, policy.head.bins)
    assert actor.bins[:, 0].tolist() == list(LOW)
    assert actor.bins[:, -1].tolist() == list(HIGH)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_loss_and_gradients_equal_detents(noise: float) -> None:
    policy = make_policy()
    actor, critic = copy_to_example(policy)
    theirs, ours = make_batches(policy, noise)
    minibatch = replace(theirs, advantages=normalized_advantages(theirs.advantages))
    expected, outputs = total_loss(policy, minibatch, PPOLoss(CONFIG.ppo), CONFIG.update)
    expected_metrics = report(policy, outputs, minibatch, PPOLoss(CONFIG.ppo), CONFIG.update)
    loss, metrics = ppo_rnd.ppo_loss(actor, critic, ours, SETTINGS)

    # Without noise every ratio is 1 and every value the old one; with it both kinds of clipping are at work.
    moved = (policy.value(theirs.observation) - theirs.value).abs()
    assert (expected_metrics["clip_fraction"].item() > 0.1) == (noise > 0)
    assert ((moved > CONFIG.update.value_clip).double().mean().item() > 0.1) == (noise > 0)

    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for name in ("value_loss", "entropy", "approx_kl", "clip_fraction"):
        torch.testing.assert_close(metrics[name], expected_metrics[name], rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(loss, parameters_of(actor, critic))
    expected_gradients = torch.autograd.grad(expected, parameters_of(policy.actor, policy.critic))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert expected_gradient.abs().max() > 1e-6
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


def test_an_update_equals_detents() -> None:
    policy = make_policy()
    actor, critic = copy_to_example(policy)
    start = [parameter.detach().clone() for parameter in parameters_of(actor, critic)]
    theirs, ours = make_batches(policy, noise=0.0)
    config = replace(CONFIG.update, epochs=3, minibatches=4)
    MinibatchUpdate(policy, PPOLoss(CONFIG.ppo), config).update(theirs, 0.01, torch.Generator().manual_seed(5))
    adam = torch.optim.Adam(parameters_of(actor, critic), 0.01, eps=config.adam_eps, weight_decay=config.weight_decay)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ppo_rnd.update(actor, critic, adam, ours, replace(SETTINGS, epochs=3, minibatches=4))
    originals = parameters_of(policy.actor, policy.critic)
    for before, parameter, original in zip(start, parameters_of(actor, critic), originals, strict=True):
        assert (parameter - before).abs().max() > 0.005
        torch.testing.assert_close(parameter, original, rtol=1e-9, atol=1e-9)


def test_advantages_equal_detents_with_terminations_and_truncations() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, final_value = torch.randn(3, 40, 6, generator=generator, dtype=torch.float64)
    last_value = torch.randn(6, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 40, 6, generator=generator) < 0.2
    ended = terminated | truncated
    assert (terminated & truncated).any()
    assert (truncated & ~terminated).any()
    # A simulator may end an episode because its state is no longer finite.
    final_value[terminated] = torch.nan
    expected = detent_gae(
        reward, value, last_value, final_value, terminated, truncated, SETTINGS.gamma, SETTINGS.gae_lambda
    )
    next_value = torch.where(ended, final_value, torch.cat([value[1:], last_value[None]]))
    advantages = ppo_rnd.gae(reward, value, next_value, terminated, truncated, SETTINGS)
    torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)


def test_observation_statistics_equal_detents_over_two_rollouts() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = ppo_rnd.RunningNormalizer(3), ObservationNormalizer(3, CONFIG.normalize.clip)
    for size in (50, 80):
        rows = torch.randn(size, 3, generator=generator) * torch.tensor([0.1, 1.0, 5.0]) + size / 20
        rows[0, 0] = 1e3
        for normalizer in (ours, theirs):
            normalizer.merge(rows)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.var, theirs.var, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours(rows), theirs(rows), rtol=1e-5, atol=1e-5)
    assert ours(1e4 * torch.ones(3)).tolist() == theirs(1e4 * torch.ones(3)).tolist() == [10.0] * 3


def test_reward_scaling_equals_detents_over_two_rollouts() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = ppo_rnd.RewardScaler(4, 0.9), DetentRewardScaler(4, 0.9, CONFIG.normalize.clip)
    for outlier in (1.0, 200.0):
        reward = torch.randn(30, 4, generator=generator) + 1
        reward[5, 0] = outlier
        ended = torch.rand(30, 4, generator=generator) < 0.1
        ended[5, 0] = True
        scaled = ours(reward, ended)
        torch.testing.assert_close(scaled, theirs(reward, ended), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.moments.var, theirs.moments.var, rtol=1e-12, atol=1e-12)
    assert scaled[5, 0] == CONFIG.normalize.clip


class SumCritic(nn.Module):
    """V = 10 episode + step, of an observation of `Scripted-v0`."""

    def forward(self, observation: Tensor) -> Tensor:
        return 10 * observation[..., 0] + observation[..., 1]


def test_truncation_bootstraps_from_the_final_observation() -> None:
    settings = ppo_rnd.Settings(task=SCRIPTED, num_envs=1, rollout_steps=12, gamma=0.5, gae_lambda=0.0)
    collector = ppo_rnd.Collector(settings)
    # Observations as they are, so that the test can tell them apart.
    collector.normalizer = ppo_rnd.RunningNormalizer(2)
    batch, raw_observations, episode_returns = collector.collect(
        ppo_rnd.Actor(2, collector.action_space, settings), SumCritic()
    )
    torch.testing.assert_close(batch.observation, raw_observations)
    # Two rounds of three episodes, whichever came first.
    assert sorted(episode_returns) == [6.0, 6.0, 30.0, 30.0, 100.0, 100.0]
    scale = 1 / collector.reward_scaler.moments.var.sqrt().item()
    for (episode, step), advantage in zip(raw_observations.int().tolist(), batch.advantages.tolist(), strict=True):
        rewards, terminated, _ = EPISODES[episode]
        # With lambda 0 the advantage is r + gamma V(next) - V; after the last step, `next` is the final observation.
        dead = terminated and step + 1 == len(rewards)
        next_value = 0 if dead else 10 * episode + step + 1
        expected = min(rewards[step] * scale, 10) + 0.5 * next_value - (10 * episode + step)
        assert advantage == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_ratio_is_one_before_the_first_gradient_step() -> None:
    settings = ppo_rnd.Settings(task=TARGET, num_envs=4, rollout_steps=16, width=16, depth=1)
    collector = ppo_rnd.Collector(settings)
    actor, critic = ppo_rnd.Actor(2, collector.action_space, settings), ppo_rnd.make_critic(2)
    batch, _, _ = collector.collect(actor, critic)
    log_ratio = actor(batch.observation).log_prob(batch.bin_index).sum(-1) - batch.log_prob
    assert log_ratio.abs().max() < 1e-5
    torch.testing.assert_close(critic(batch.observation), batch.value)


def test_steps_learning_rates_and_adam_settings_equal_detents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = ppo_rnd.Settings(task=TARGET, steps=600, schedule_steps=1000, num_envs=4, rollout_steps=8, width=8)
    overrides = {name: getattr(settings, name) for name in ("steps", "schedule_steps", "rollout_steps")}
    overrides |= {"env.num_envs": 4, "actor.width": 8, "update.epochs": 1, "update.minibatches": 2, "threads": 1}
    config = detent.configure(TARGET, preset="fast", overrides=overrides)
    rows: list[dict[str, Any]] = []
    detent.train(config, out=tmp_path / "run", on_iteration=lambda row, policy: rows.append(row))

    groups: list[dict[str, Any]] = []

    def remember(actor: ppo_rnd.Actor, critic: nn.Module, optimizer: torch.optim.Adam, *_: Any) -> dict[str, Tensor]:
        groups.append(dict(optimizer.param_groups[0]))
        return {}

    monkeypatch.setattr(ppo_rnd, "update", remember)
    # Every rollout ends episodes of 8 steps, so the curve has a point for every iteration.
    curve = ppo_rnd.train(settings)
    assert [step for step, _ in curve] == [row["step"] for row in rows]
    assert [group["lr"] for group in groups] == pytest.approx([row["learning_rate"] for row in rows])
    assert groups[0]["lr"] > groups[-1]["lr"] > 0
    assert groups[0]["eps"] == config.update.adam_eps
    assert groups[0]["weight_decay"] == config.update.weight_decay


def test_it_learns_the_target_task_and_repeats_itself() -> None:
    settings = ppo_rnd.Settings(
        task=TARGET, steps=12_000, num_envs=8, rollout_steps=64, minibatches=8, learning_rate=3e-3, width=32, depth=1
    )
    curve = ppo_rnd.train(settings)
    # A uniformly random action earns about -2.2 per episode; the best return is 0.
    assert -2.6 < curve[0][1] < -1.8
    assert curve[-1][1] > curve[0][1] / 4, curve
    beginning = ppo_rnd.train(replace(settings, steps=2_000))
    assert len(beginning) == 3
    assert beginning == curve[:3]


def test_observation_statistics_are_frozen_until_the_update_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[int | str] = []
    merge = ppo_rnd.RunningNormalizer.merge

    def remember_merge(self: ppo_rnd.RunningNormalizer, rows: Tensor) -> None:
        # Observations have two columns, returns one.
        events.extend([len(rows)] if rows.shape[1] == 2 else [])
        merge(self, rows)

    def remember_update(*_: Any) -> dict[str, Tensor]:
        events.append("update")
        return {}

    monkeypatch.setattr(ppo_rnd.RunningNormalizer, "merge", remember_merge)
    monkeypatch.setattr(ppo_rnd, "update", remember_update)
    ppo_rnd.train(ppo_rnd.Settings(task=TARGET, steps=4 * 64 + 2 * 32, num_envs=4, rollout_steps=8, width=8))
    assert events == [4 * 64, "update", 32, "update", 32]


def make_unbounded_env(**_: Any) -> TargetEnv:
    env = TargetEnv()
    env.action_space = Box(-np.inf, np.inf, (2,))
    return env


def test_actions_without_bounds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unbounded = EnvRegistration("Unbounded-v0", entry_point=make_unbounded_env)
    monkeypatch.setitem(gymnasium.registry, "Unbounded-v0", unbounded)
    for task in ("Unbounded-v0", "CartPole-v1"):
        with pytest.raises(ValueError, match=f"the actions of {task} are .*; bins need a Box with finite bounds"):
            ppo_rnd.Collector(ppo_rnd.Settings(task=task, num_envs=1))
