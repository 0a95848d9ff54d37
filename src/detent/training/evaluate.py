"""Evaluation: a quota of whole episodes per environment, frozen statistics, separate seeds; training is unaffected."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detent.config import READOUTS, Config, Readout
from detent.config.io import read_run_config
from detent.envs import EnvFactory, Episode, VectorEnv, make_eval_envs
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.checkpoints import Score
from detent.paper.scores import normalized, paper_score, paper_task
from detent.rollouts.rollout import NonFiniteError
from detent.seeding import derive_seed
from detent.threads import usable_cores
from detent.training import checkpoint as checkpoint_files
from detent.training.plugins import require_trust

NO_END_IN_SIGHT = 10_000
"""Steps after which an evaluation gives up on an episode, if the environment has no time limit."""


ROW_KEYS: dict[Readout, str] = {"sample": "stochastic", "mode": "deterministic", "mean": "mean"}
"""The readouts of an evaluation, and their keys in its row."""


Summaries = dict[str, dict[str, Any] | None]
"""Summaries of evaluations by the readout's key in a row; None if the readout could not be measured."""


class EndlessEpisodeError(RuntimeError):
    """An episode of an environment without a time limit that does not end."""


class Player(Protocol):
    """Anything that can be evaluated: a policy, or a baseline's policy."""

    @property
    def device(self) -> torch.device: ...

    @property
    def mean_is_mode(self) -> bool: ...
    @property
    def has_mean(self) -> bool: ...

    def __call__(self, observation: Any, readout: Readout, generator: torch.Generator, /) -> Any: ...


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one policy, ordered by environment, then by time."""

    episodes: tuple[Episode, ...]
    action_change: float
    """Mean |change of action| from one step to the next, over half the action range: 0 is smooth, 2 is bang-bang."""

    def summary(self, task: str) -> dict[str, Any]:
        """Return the mean, standard deviation, 95% bootstrap interval of the mean, and TD3-normalized score if any."""
        returns = np.array([episode.total_reward for episode in self.episodes])
        low, high = bootstrap_interval(returns)
        out = {
            "return": float(returns.mean()),
            "std": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "ci95": [low, high],
            "length": float(np.mean([episode.length for episode in self.episodes])),
            "episodes": len(self.episodes),
            "action_change": self.action_change,
            "score": normalized(task, float(returns.mean())),
        }
        return out | success_rates(self.episodes)


class Evaluator:
    """Evaluates a run's policy, always in the same environments (made on first use) and with separate seeds."""

    def __init__(self, config: Config, factory: EnvFactory | None = None) -> None:
        self._config, self._factory = config, factory
        self._envs: VectorEnv | None = None

    def row(self, player: Player, step: int, iteration: int) -> dict[str, Any]:
        """Evaluate `player` with every readout; return the row of `evals.jsonl`."""
        config, started = self._config, time.perf_counter()
        row: dict[str, Any] = {"step": step, "iteration": iteration}
        seeds = {readout: derive_seed(config.seed, "eval", iteration, ROW_KEYS[readout]) for readout in READOUTS}
        row |= self.compare(player, seeds, config.eval.episodes)
        task = paper_task(config.task, config.env.obs)
        row["paper_score"] = paper_score(config.algo, task, config.variant, step)
        return row | {"time/seconds": time.perf_counter() - started}

    def compare(
        self, player: Player, seeds: Mapping[Readout, int], episodes: int, watch: Callable[[], None] | None = None
    ) -> Summaries:
        """Return the summary of `episodes` episodes with each readout of `seeds`, by its key in a row."""
        config = self._config
        if self._envs is None:
            # Kept between evaluations: worker processes with a renderer take long to start.
            num_envs = min(config.eval.num_envs, config.eval.episodes)
            self._envs = make_eval_envs(config.task, config.env, num_envs, config.threads, self._factory)
        return compare(player, self._envs, config.task, episodes, seeds, config.eval.rank_by, watch)

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()


def success_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the shares of episodes that succeeded at any time and in their last step; empty if never reported."""
    if all(episode.success is None for episode in episodes):
        return {}
    # Some environments report success only when it happens: a missing value means failure.
    return {
        "success_once": float(np.mean([episode.success or 0.0 for episode in episodes])),
        "success_at_end": float(np.mean([episode.success_at_end or 0.0 for episode in episodes])),
    }


def bootstrap_interval(values: NDArray[np.float64], resamples: int = 10_000) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean; seeded, so the same values give the same interval."""
    draws = np.random.default_rng(0).choice(values, size=(resamples, len(values)))
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def ranking(summary: Mapping[str, Any]) -> Score:
    """Return what policies are ranked by: success rate (0 if never reported), then return."""
    total = summary["return"]
    return summary.get("success_once", 0.0), total if math.isfinite(total) else -math.inf


def better_readout(found: Mapping[str, Any]) -> Readout:
    """Return `mode` or `mean`, whichever ranks higher among the summaries `found`; `mean` may be missing."""
    if found[ROW_KEYS["mean"]] is None:
        return "mode"
    choices: tuple[Readout, Readout] = ("mode", "mean")
    return max(choices, key=lambda readout: ranking(found[ROW_KEYS[readout]]))


def compare(
    player: Player,
    envs: VectorEnv,
    task: str,
    episodes: int,
    seeds: Mapping[Readout, int],
    needed: Readout = "sample",
    watch: Callable[[], None] | None = None,
) -> Summaries:
    """Return the summary of `episodes` episodes with each readout of `seeds`, by the readout's key in a row.

    An expected action may stay in the middle of its range for ever. If its episodes do not end, its summary is None,
    unless it is the readout `needed`. `watch` is called in every step.
    """
    found: Summaries = {}
    for readout, seed in seeds.items():
        if readout == "mean" and not player.has_mean:
            found[ROW_KEYS["mean"]] = None
            continue
        if readout == "mean" and player.mean_is_mode and "mode" in seeds:
            found[ROW_KEYS["mean"]] = found[ROW_KEYS["mode"]]
            continue
        try:
            found[ROW_KEYS[readout]] = evaluate(player, envs, episodes, seed, readout, watch).summary(task)
        except EndlessEpisodeError as error:
            if readout != "mean" or needed == "mean":
                raise
            found[ROW_KEYS["mean"]] = None
            warnings.warn(f"the expected actions could not be evaluated: {error}", stacklevel=3)
    return found


def evaluate(
    policy: Player,
    envs: VectorEnv,
    episodes: int,
    seed: int,
    readout: Readout,
    watch: Callable[[], None] | None = None,
) -> Evaluation:
    """Run `episodes` episodes, a fixed share of them in each environment; call `watch` in every step.

    The share is fixed because taking whichever episodes finish first would favour short ones.
    """
    limit = math.inf if envs.spec.max_episode_steps else NO_END_IN_SIGHT
    quota = [episodes // envs.num_envs + (env < episodes % envs.num_envs) for env in range(envs.num_envs)]
    played: list[list[Episode]] = [[] for _ in quota]
    changes = ActionChanges(envs)
    generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "eval-act"))
    observation = envs.reset(derive_seed(seed, "eval-envs"))
    while any(len(done) < share for done, share in zip(played, quota, strict=True)):
        if watch is not None:
            watch()
        try:
            action = policy(observation, readout, generator)
        except ValueError as error:
            # The first index is the environment.
            raise NonFiniteError(f"in an evaluation, {error}") from None
        # Policies give actions in the environment's own shape and type, environments here take them flat.
        action = action.reshape(envs.num_envs, -1).float()
        step = envs.step(action)
        observation = step.observation
        changes.add(action, (step.terminated | step.truncated).cpu())
        if changes.length.max() >= limit:
            raise EndlessEpisodeError(
                f"an episode did not end within {NO_END_IN_SIGHT:,} steps, and the environment has no time limit; "
                "give it one, for instance --env.kwargs max_episode_steps=1000"
            )
        for episode in step.episodes:
            if len(played[episode.env]) < quota[episode.env]:
                played[episode.env].append(episode)
                changes.count(episode.env)
    return Evaluation(tuple(episode for turn in played for episode in turn), changes.mean())


class ActionChanges:
    """Accumulates |change of action| over half the range, within the episodes that count."""

    def __init__(self, envs: VectorEnv) -> None:
        low, high = torch.tensor(envs.spec.action.low), torch.tensor(envs.spec.action.high)
        self._half_range = (high - low) / 2
        self.length = torch.zeros(envs.num_envs, dtype=torch.long)
        """Length so far of each environment's current episode."""
        self._running = torch.zeros(envs.num_envs, dtype=torch.float64)
        self._ended = torch.zeros(envs.num_envs, dtype=torch.float64), torch.zeros(envs.num_envs, dtype=torch.long)
        self._last: Tensor | None = None
        self._total, self._steps = 0.0, 0

    def add(self, action: Tensor, ended: Tensor) -> None:
        """Add a step of every environment; `ended` `[N]` marks those whose episode it ended."""
        action = action.cpu()
        if self._last is not None:
            change = ((action - self._last).abs() / self._half_range).mean(-1)
            self._running += torch.where(self.length > 0, change, 0.0)
        self._last = action
        self.length += 1
        self._ended = self._running, self.length - 1
        self._running, self.length = torch.where(ended, 0.0, self._running), torch.where(ended, 0, self.length)

    def count(self, env: int) -> None:
        """Count the episode of `env` that the last step ended."""
        changes, steps = self._ended
        self._total += float(changes[env])
        self._steps += int(steps[env])

    def mean(self) -> float:
        return self._total / self._steps if self._steps else 0.0


def evaluate_run(
    run: Path | str,
    checkpoint: str | int = "best",
    *,
    episodes: int = 100,
    num_envs: int = 10,
    seed: int = 12345,
    threads: int = 0,
    env: EnvFactory | None = None,
    trust: bool = False,
    set_readout: Literal["auto", "sample", "mode", "mean"] | None = None,
) -> dict[str, Any]:
    """Evaluate a run's policy on new episodes, with sampled (`stochastic`), most probable (`deterministic`) and
    expected (`mean`) actions; `readout` in the result is the one that a call of the policy uses.

    `set_readout` is the readout for the checkpoint to remember, `auto` the better of `mode` and `mean`. `env` makes the
    environments of a run that was trained with a callable. Import paths in the run's files are imported only with
    `trust`. `threads` 0: all cores.
    """
    for name, value in (("episodes", episodes), ("envs", num_envs)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1")
    if threads < 0:
        raise ConfigError(f"--threads is {threads}; it must not be negative (0: all cores)")
    run, threads = Path(run), threads or usable_cores()
    torch.set_num_threads(threads)
    require_trust(read_run_config(run), run, trust, training=False)
    policy, state, config = checkpoints.load_policy(run, checkpoint, trust=trust)
    # A run trained with EnvPool is evaluated in Gymnasium if EnvPool is missing; one trained on the GPU, on the CPU.
    others = {"envpool": "auto", "physx_cuda": "physx_cpu"}
    env_config = replace(config.env, backend=others.get(config.env.backend, config.env.backend))
    envs = make_eval_envs(config.task, env_config, min(num_envs, episodes), threads, env)
    report: dict[str, Any] = {"run": str(run), "task": config.task, "variant": config.variant, "step": state.step}
    try:
        report |= compare(policy, envs, config.task, episodes, dict.fromkeys(READOUTS, seed))
    finally:
        envs.close()
    if set_readout is not None:
        policy.readout = better_readout(report) if set_readout == "auto" else set_readout
        checkpoint_files.set_readout(checkpoints.directory(run, state.step), policy.readout)
    report["readout"] = policy.readout
    task = paper_task(config.task, config.env.obs)
    return report | {"paper_score": paper_score(config.algo, task, config.variant, state.step)}
