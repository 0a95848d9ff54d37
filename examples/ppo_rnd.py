"""RN-D with PPO in one file: a discretized categorical actor on a regularized network.

RN-D (arXiv 2601.23075) keeps PPO as it is and changes the actor: each action dimension is a softmax over evenly spaced
bins, computed by a residual network with LayerNorm. This file imports nothing of Detent, but
tests/examples/test_ppo_rnd.py checks that both compute the same; `detent train` adds speed, checkpoints and evaluation.

    OMP_NUM_THREADS=1 python examples/ppo_rnd.py --task InvertedPendulum-v4 --steps 50_000

takes a minute of CPU time. The mean return is 5.8 at step 3,072 and 1000, the task's maximum, from step 44,032 on; with
`--seed 2` it is 1000 at step 41,984 and 357 in the last iteration; `--task Hopper-v4 --steps 100_000` ends at 415. The
defaults are Detent's `fast` preset; `--rollout-steps 1024 --minibatches 64 --steps 5_000_000` is `paper`. Shapes: T
steps, N environments, B transitions, n numbers in an observation, m action dimensions, K bins.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TransformObservation
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim import Adam


@dataclass(frozen=True)
class Settings:
    task: str = "Hopper-v4"
    """Gymnasium id of a task with vector observations and bounded actions; `package.module:EnvId-v0` for your own."""
    steps: int = 1_000_000
    """Environment steps in all, rounded up to whole iterations."""
    schedule_steps: int = 1_000_000
    """Steps over which the learning rate falls linearly to zero; a longer run takes its own length."""
    seed: int = 1
    """Everything random comes from this number."""
    num_envs: int = 16
    """Environments stepped side by side."""
    rollout_steps: int = 128
    """Steps per environment and iteration."""
    bins: int = 41
    """Bins per action dimension, evenly spaced from the lower to the upper bound."""
    width: int = 256
    """Width of the actor; its residual blocks are four times as wide inside."""
    depth: int = 2
    """Residual blocks of the actor."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Weight of longer returns in generalized advantage estimation."""
    epochs: int = 10
    """Passes over each rollout."""
    minibatches: int = 32
    """Minibatches per epoch."""
    learning_rate: float = 3e-4
    """Adam's step size at the start."""
    clip: float = 0.2
    """Clip the probability ratio to [1 - clip, 1 + clip]."""
    value_clip: float = 0.2
    """Clip the change of a value prediction to this range."""


def linear(inputs: int, outputs: int, gain: float | None = None) -> nn.Linear:
    """Create a layer with zero bias, and weights that are orthogonal times `gain`, or He-normal without it."""
    layer = nn.Linear(inputs, outputs)
    if gain is None:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    else:
        nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ffn = nn.Sequential(linear(width, 4 * width), nn.ReLU(), linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.ffn(self.norm(x)))


class Actor(nn.Module):
    """The regularized network, and one softmax per action dimension over `bins` `[m, K]` on its own bounds."""

    def __init__(self, observation_size: int, action_space: Box, settings: Settings) -> None:
        super().__init__()
        bins = np.linspace(action_space.low, action_space.high, settings.bins, axis=1, dtype=np.float32)
        self.bins, width = nn.Buffer(torch.from_numpy(bins)), settings.width
        projection = linear(observation_size, width, gain=1.0)
        blocks = [ResidualBlock(width) for _ in range(settings.depth)]
        head = linear(width, bins.size, gain=0.01)
        self.network = nn.Sequential(projection, *blocks, nn.LayerNorm(width), head)

    def forward(self, observation: Tensor) -> Categorical:
        """Independent distributions `[B, m]` over K bins, given normalized observations `[B, n]`."""
        logits = self.network(observation).unflatten(-1, self.bins.shape)
        return Categorical(logits=logits, validate_args=False)


def make_critic(observation_size: int) -> nn.Module:
    """Create a network for the values `[B]` of normalized observations `[B, n]`."""
    return nn.Sequential(linear(observation_size, 64, 2**0.5), nn.Tanh(), linear(64, 1, 1.0), nn.Flatten(start_dim=-2))


class RunningNormalizer:
    """Normalizes by the mean and variance, kept in float64, of all rows `[B, size]` merged so far (Chan et al.)."""

    def __init__(self, size: int) -> None:
        self.mean, self.var, self.count = torch.zeros(size).double(), torch.ones(size).double(), 0

    def merge(self, rows: Tensor) -> None:
        var, mean = torch.var_mean(rows.double(), dim=0, correction=0)
        self.count += len(rows)
        share, delta = len(rows) / self.count, mean - self.mean
        self.mean = self.mean + share * delta
        self.var = (1 - share) * self.var + share * var + share * (1 - share) * delta.square()

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale(x - self.mean)

    def scale(self, x: Tensor) -> Tensor:
        return (x / (self.var + 1e-8).sqrt()).clamp(-10, 10).float()


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma, self.moments, self.running = gamma, RunningNormalizer(size=1), torch.zeros(num_envs).double()

    def __call__(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Merge the returns of a rollout `[T, N]` into the statistics, then scale its rewards with them."""
        returns = torch.empty(reward.shape, dtype=torch.float64)
        for t in range(len(reward)):
            returns[t] = reward[t] + self.gamma * self.running
            self.running = returns[t] * ~ended[t]
        self.moments.merge(returns.view(-1, 1))
        return self.moments.scale(reward)


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, settings: Settings
) -> Tensor:
    """Compute advantages `[T, N]`; `next_value` is that of the observation a step led to, before any reset."""
    # A truncated episode was only cut off and bootstraps from its final observation; a terminated one has no future.
    delta = reward + settings.gamma * torch.where(terminated, 0.0, next_value) - value
    ended, decay = terminated | truncated, settings.gamma * settings.gae_lambda
    advantages, running = torch.empty_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        running = advantages[t] = delta[t] + torch.where(ended[t], 0.0, decay * running)
    return advantages


class Batch(NamedTuple):
    """Transitions `[B, ...]`; `log_prob` (summed over action dimensions) and `value` are those of the rollout."""

    observation: Tensor
    bin_index: Tensor
    log_prob: Tensor
    value: Tensor
    advantages: Tensor
    returns: Tensor


class Collector:
    """The environments, the observations to act on next, and the running statistics."""

    def __init__(self, settings: Settings) -> None:
        def make_env() -> gym.Env[Any, Any]:
            # np.array copies: where an environment reuses its array, the reset would overwrite the final observation.
            return TransformObservation(RecordEpisodeStatistics(gym.make(settings.task)), np.array, None)

        # An episode that ends is reset in the same step, so that no dummy transition enters a batch.
        self.envs = SyncVectorEnv([make_env] * settings.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        action_space = self.envs.single_action_space
        if not (isinstance(action_space, Box) and action_space.is_bounded()):
            raise ValueError(f"the actions of {settings.task} are {action_space}; bins need a Box with finite bounds")
        self.settings, self.action_space = settings, action_space
        warmup_seed, action_seed, seed = np.random.SeedSequence(settings.seed).generate_state(3).tolist()
        self.envs.action_space.seed(action_seed)
        # 64 observations per environment under random actions start the statistics.
        warmup = [self.envs.reset(seed=warmup_seed)[0]]
        warmup += [self.envs.step(self.envs.action_space.sample())[0] for _ in range(63)]
        self.normalizer = RunningNormalizer(size=warmup[0].shape[1])
        self.normalizer.merge(torch.from_numpy(np.concatenate(warmup)))
        self.reward_scaler = RewardScaler(settings.num_envs, settings.gamma)
        self.observation, _ = self.envs.reset(seed=seed)

    @torch.no_grad()
    def collect(self, actor: Actor, critic: nn.Module) -> tuple[Batch, Tensor, list[float]]:
        """Collect a batch, its raw observations `[B, n]`, and the returns of the episodes that ended in it."""
        steps: list[tuple[Tensor, ...]] = []
        episode_returns: list[float] = []
        for _ in range(self.settings.rollout_steps):
            observation = torch.from_numpy(self.observation)
            distribution = actor(self.normalizer(observation))
            bin_index = distribution.sample()
            action = actor.bins[torch.arange(len(actor.bins)), bin_index].numpy()
            self.observation, reward, terminated, truncated, info = self.envs.step(action)
            next_observation, ended = self.observation.copy(), terminated | truncated
            if ended.any():
                next_observation[ended] = np.stack(info["final_obs"][ended])
                episode_returns += info["final_info"]["episode"]["r"][ended].tolist()
            outcome = map(torch.from_numpy, (reward, terminated, truncated, next_observation))
            steps.append((observation, bin_index, distribution.log_prob(bin_index).sum(-1), *outcome))
        columns = (torch.stack(column) for column in zip(*steps, strict=True))
        observations, bin_indices, log_probs, rewards, terminations, truncations, next_observations = columns
        inputs = self.normalizer(observations)
        values, next_values = critic(inputs), critic(self.normalizer(next_observations))
        rewards = self.reward_scaler(rewards, terminations | truncations)
        advantages = gae(rewards, values, next_values, terminations, truncations, self.settings)
        batch = Batch(inputs, bin_indices, log_probs, values, advantages, advantages + values)
        return Batch(*(x.flatten(end_dim=1) for x in batch)), observations.flatten(end_dim=1), episode_returns


def ppo_loss(actor: Actor, critic: nn.Module, minibatch: Batch, settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of a minibatch, and metrics to report."""
    distribution, value = actor(minibatch.observation), critic(minibatch.observation)
    std, mean = torch.std_mean(minibatch.advantages)
    advantages = (minibatch.advantages - mean) / (std + 1e-8)
    log_ratio = distribution.log_prob(minibatch.bin_index).sum(-1) - minibatch.log_prob
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy_loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages).mean()
    clipped_value = value.clamp(minibatch.value - settings.value_clip, minibatch.value + settings.value_clip)
    error, clipped_error = value - minibatch.returns, clipped_value - minibatch.returns
    value_loss = 0.5 * torch.maximum(error.square(), clipped_error.square()).mean()
    approx_kl, clip_fraction = (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > settings.clip).float().mean()
    loss, entropy = policy_loss + 0.5 * value_loss, distribution.entropy().sum(-1).mean()
    return loss, {"value_loss": value_loss, "entropy": entropy, "approx_kl": approx_kl, "clip_fraction": clip_fraction}


def update(actor: Actor, critic: nn.Module, optimizer: Adam, batch: Batch, settings: Settings) -> dict[str, Tensor]:
    """Take a gradient step on each minibatch of each epoch; return the metrics of the last."""
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(batch.advantages)).tensor_split(settings.minibatches):
            loss, metrics = ppo_loss(actor, critic, Batch(*(x[rows] for x in batch)), settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()
    return metrics


def train(settings: Settings) -> list[tuple[int, float]]:
    """Train from scratch; return (environment steps, mean return of the episodes that ended) per iteration."""
    torch.manual_seed(settings.seed)
    collector = Collector(settings)
    observation_size = collector.observation.shape[1]
    actor, critic = Actor(observation_size, collector.action_space, settings), make_critic(observation_size)
    optimizer = Adam([*actor.parameters(), *critic.parameters()], eps=1e-5, weight_decay=1e-5)
    curve: list[tuple[int, float]] = []
    step = warmup = collector.normalizer.count
    while step < settings.steps:
        batch, raw_observations, episode_returns = collector.collect(actor, critic)
        progress = (step - warmup) / max(settings.steps, settings.schedule_steps)
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - progress)
        metrics = update(actor, critic, optimizer, batch, settings)
        # Not before: a rollout and its update must see the same normalized observations.
        collector.normalizer.merge(raw_observations)
        step += len(batch.advantages)
        if episode_returns:
            curve.append((step, sum(episode_returns) / len(episode_returns)))
            report = (f"{name} {metric:.3g}" for name, metric in metrics.items())
            print(f"step {step:,}: return {curve[-1][1]:.1f}", *report, sep=", ", flush=True)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="RN-D with PPO; the Settings in this file explain each option.")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    train(Settings(**vars(parser.parse_args())))
