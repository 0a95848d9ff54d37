"""Evaluation: a quota of whole episodes per environment, frozen statistics, own seeds; training is not touched."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from detent.config import Config
from detent.envs import EnvFactory, Episode, VectorEnv, make_eval_envs
from detent.paper.scores import normalized, paper_score, paper_task
from detent.seeding import derive_seed

NO_END_IN_SIGHT = 10_000
"""Steps after which an evaluation gives up on an episode of an environment without a time limit."""


class Player(Protocol):
    """What can be evaluated: a policy, or a baseline's."""

    @property
    def device(self) -> torch.device: ...

    def __call__(self, observation: Any, deterministic: bool, generator: torch.Generator, /) -> Any: ...


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one policy, in order of environment and turn."""

    episodes: tuple[Episode, ...]

    def summary(self, task: str) -> dict[str, Any]:
        """Mean, spread, a 95% bootstrap interval of the mean, and the TD3-normalized score where the task has one."""
        returns = np.array([episode.total_reward for episode in self.episodes])
        low, high = bootstrap_interval(returns)
        out = {
            "return": float(returns.mean()),
            "std": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "ci95": [low, high],
            "length": float(np.mean([episode.length for episode in self.episodes])),
            "episodes": len(self.episodes),
            "score": normalized(task, float(returns.mean())),
        }
        return out | success_rates(self.episodes)


class Evaluator:
    """The evaluations of a run: always the same environments, made when first needed, and seeds of their own."""

    def __init__(self, config: Config, factory: EnvFactory | None = None) -> None:
        self._config, self._factory = config, factory
        self._envs: VectorEnv | None = None

    def row(self, player: Player, step: int, iteration: int) -> dict[str, Any]:
        """What `evals.jsonl` says of `player` at this step: the episodes of both plays."""
        config, started = self._config, time.perf_counter()
        if self._envs is None:
            # Kept from one evaluation to the next: worker processes with a renderer take long to start.
            num_envs = min(config.eval.num_envs, config.eval.episodes)
            self._envs = make_eval_envs(config.task, config.env, num_envs, config.threads, self._factory)
        row: dict[str, Any] = {"step": step, "iteration": iteration}
        for play in ("stochastic", "deterministic"):
            seed = derive_seed(config.seed, "eval", iteration, play)
            played = evaluate(player, self._envs, config.eval.episodes, seed, play == "deterministic")
            row[play] = played.summary(config.task)
        task = paper_task(config.task, config.env.obs)
        row["paper_score"] = paper_score(config.algo, task, config.variant, step)
        return row | {"time/seconds": time.perf_counter() - started}

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()


def success_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares of episodes that succeeded at any time and in their last step; empty where success is never reported."""
    if all(episode.success is None for episode in episodes):
        return {}
    # Where an environment reports success only when there is one, silence means none.
    return {
        "success_once": float(np.mean([episode.success or 0.0 for episode in episodes])),
        "success_at_end": float(np.mean([episode.success_at_end or 0.0 for episode in episodes])),
    }


def bootstrap_interval(values: NDArray[np.float64], resamples: int = 10_000) -> tuple[float, float]:
    """95% percentile bootstrap interval of the mean; the resampling is seeded, so the same values give the same."""
    draws = np.random.default_rng(0).choice(values, size=(resamples, len(values)))
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def evaluate(policy: Player, envs: VectorEnv, episodes: int, seed: int, deterministic: bool) -> Evaluation:
    """Play `episodes` episodes, each environment its fixed share of them.

    A fixed share, because taking whatever finishes first would favour short episodes.
    """
    limit = math.inf if envs.spec.max_episode_steps else NO_END_IN_SIGHT
    quota = [episodes // envs.num_envs + (env < episodes % envs.num_envs) for env in range(envs.num_envs)]
    played: list[list[Episode]] = [[] for _ in quota]
    generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "eval-act"))
    observation = envs.reset(derive_seed(seed, "eval-envs"))
    running = torch.zeros(envs.num_envs, dtype=torch.long)
    while any(len(done) < share for done, share in zip(played, quota, strict=True)):
        action = policy(observation, deterministic, generator)
        step = envs.step(action)
        observation = step.observation
        running = torch.where((step.terminated | step.truncated).cpu(), 0, running + 1)
        if running.max() >= limit:
            raise RuntimeError(
                f"an episode did not end within {NO_END_IN_SIGHT:,} steps, and the environment has no time limit; "
                "give it one, for instance --env.kwargs max_episode_steps=1000"
            )
        for episode in step.episodes:
            if len(played[episode.env]) < quota[episode.env]:
                played[episode.env].append(episode)
    return Evaluation(tuple(episode for turn in played for episode in turn))
