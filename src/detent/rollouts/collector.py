"""The environments of a run and the rollout they fill, in one process or in several."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from detent.acceleration.worker_group import Team, shared_copy, shared_zeros
from detent.config import Config
from detent.envs import Episode, Observation, VectorEnv, split
from detent.models.policy import Policy
from detent.rollouts.rollout import Rollout, allocate, collect
from detent.seeding import derive


class Collector:
    """Environments, the observations to act on next, and the rollout, which is filled again each time.

    In a team every process acts in environments of its own and fills its columns of the rollout, which is in memory
    that all share. No core waits while another one acts, and they meet at its beginning and end only.
    """

    def __init__(self, policy: Policy, envs: VectorEnv, config: Config, processes: int = 1) -> None:
        """For more than one process the parameters of `policy` must be in shared memory, where `FirstOrder` has them;
        the others are forked by the first rollout."""
        self._policy, self._envs, self._config = policy, envs, config
        self._team = Team(max(1, min(processes, envs.num_envs)), "rollout")
        if self._team.size > 1:
            for buffer in policy.buffers():
                buffer.data = shared_copy(buffer)
        self._parts: list[VectorEnv] = []
        self._observation: Observation = {}
        self._rollout: Rollout | None = None
        self._order = shared_zeros((2,), torch.int64)

    def collect(self, iteration: int, fresh: bool) -> Rollout:
        """Experience for `iteration`; with `fresh`, as the first time, in environments made anew from a seed of it."""
        team, begun = self._team, self._rollout is not None
        if self._rollout is None:
            parts = [team.share(self._envs.num_envs, rank) for rank in range(team.size)]
            self._parts = split(self._envs, parts, self._config.threads)
            self._reset(iteration)
            self._rollout = self._allocate()
            team.start(self._take_part)
        self._order[0], self._order[1] = iteration, fresh or not begun
        team.meet()
        if fresh and begun:
            self._reset(iteration)
        part = self._fill(iteration)
        waiting = time.perf_counter()
        gathered = team.gather(as_dicts(part.episodes))
        self._rollout.episodes = [Episode(**fields) for episodes in gathered for fields in episodes]
        self._rollout.seconds = part.seconds
        self._rollout.seconds["simulate"] += time.perf_counter() - waiting
        return self._rollout

    def _allocate(self) -> Rollout:
        """For all environments, some of whose first observations are there."""
        all_rows = torch.zeros(self._envs.num_envs, dtype=torch.int64)
        first = {key: value[all_rows] for key, value in self._observation.items()}
        rollout = allocate(self._policy, first, self._config.rollout_steps)
        return rollout.map(shared_copy) if self._team.size > 1 else rollout

    def _take_part(self) -> None:
        """What the other processes do for a rollout."""
        iteration, fresh = self._order.tolist()
        if fresh:
            self._reset(iteration)
        self._team.gather(as_dicts(self._fill(iteration).episodes))

    def _reset(self, iteration: int) -> None:
        with self._team.on_own_core():
            self._observation = self._parts[self._team.rank].reset(derive(self._config.seed, "envs", iteration))

    def _fill(self, iteration: int) -> Rollout:
        """This process's columns of the rollout, filled."""
        assert self._rollout is not None
        rank = self._team.rank
        part = self._rollout.columns(self._team.share(self._envs.num_envs))
        names = ("act", iteration, rank) if rank else ("act", iteration)
        generator = torch.Generator(self._policy.device).manual_seed(derive(self._config.seed, *names))
        with self._team.on_own_core():
            self._observation = collect(self._policy, self._parts[rank], self._observation, part, generator)
        return part

    def close(self) -> None:
        self._team.close()
        for part in self._parts:
            part.close()
        self._envs.close()


def as_dicts(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [asdict(episode) for episode in episodes]
