"""The training loop: collect, estimate advantages, update, report; evaluate and save when due."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from detent.config import Config
from detent.envs import EnvFactory, make_envs
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.normalize import RewardScaler
from detent.models.policy import Policy
from detent.paper.scores import normalized
from detent.rollouts.batch import Batch
from detent.rollouts.rollout import Rollout, checksum, require_finite, require_finite_rows
from detent.seeding import derive_seed
from detent.training import checkpoint
from detent.training.callbacks import Row, RunContext
from detent.training.differences import setting_differences, space_differences
from detent.training.dispatch import Callbacks
from detent.training.engine import engine_notes, make_collector, make_update_rule
from detent.training.evaluate import ROW_KEYS, Evaluator, ranking, success_rates
from detent.training.finiteness import require_finite_update
from detent.training.plugins import unrecorded
from detent.training.readout import choose_readout
from detent.training.run_directory import RunLog
from detent.training.signals import StopRequest


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    path: Path
    step: int
    finished: bool
    """False if the run was stopped on request."""
    reason: str
    """Why it ended."""
    evaluation: Row | None
    """The last evaluation."""


class Trainer:
    """Runs the training loop; holds everything that changes during a run."""

    def __init__(self, config: Config, callbacks: Callbacks, factory: EnvFactory | None = None) -> None:
        """Make the environments, policy and update rule; `factory` makes environments that have no name."""
        self.config, self.callbacks = config, callbacks
        self.device = torch.device(config.device)
        self.envs = make_envs(config.task, config.env, config.env.num_envs, config.threads, factory)
        self.spec = self.envs.spec
        self._evaluator = Evaluator(config, factory)
        try:
            # Acting and evaluating are not training: a plug-in may have dropout.
            self.policy = Policy(self.spec, config).to(self.device).eval()
            self.rule = make_update_rule(self.policy, config)
            self.collector = make_collector(self.policy, self.envs, config)
        except BaseException:
            self.envs.close()
            raise
        self._trainable = trainable(self.policy)
        self.reward_scaler = RewardScaler(config.env.num_envs, config.advantage.gamma, config.normalize.clip).to(
            self.device
        )
        self.iteration = 0
        self.unfinished = torch.zeros(config.env.num_envs, dtype=torch.long)
        """Length so far of each environment's current episode."""
        self.rebuilt_at = 0
        self.best: tuple[int, checkpoints.Score] | None = None
        self.last_evaluation: Row | None = None
        self._resumed: checkpoints.State | None = None
        self._run: RunContext | None = None

    @property
    def step(self) -> int:
        """Return the number of environment steps so far."""
        return self.config.warmup + self.iteration * self.config.batch_size

    def run(self, log: RunLog) -> Result:
        """Iterate until all steps are done or a stop is requested."""
        config = self.config
        notes = (
            *self.spec.observation.notes,
            *self.rule.notes,
            *engine_notes(config, self.policy),
            *unrecorded(config),
        )
        run = self._run = RunContext(self, log.path, self.policy, log.wall_time, notes)
        resumed = self._resumed
        self.callbacks.start(run, resumed.env_attributes if resumed else {}, resumed.callbacks if resumed else {})
        with StopRequest(self.callbacks.message) as stop:
            if self.iteration == 0:
                self._begin(log)
            self._rebuild()
            stopping = False
            while self.iteration < config.iterations and not stopping:
                row = self._iterate()
                finished = self.iteration == config.iterations
                due = self.iteration % config.iterations_per(config.eval.interval) == 0
                scheduled = self.iteration % config.iterations_per(config.checkpoint.interval) == 0
                if scheduled:
                    row["cut_share"] = self._cut_share()
                row = log.append("metrics", row)
                log.heartbeat()
                self.callbacks.emit("on_iteration", row)
                improved = (due or finished) and self._improves(self._evaluate(log))
                stopping = stop.requested or run.stop_reason is not None
                if scheduled:
                    self._save(log, "scheduled")
                    if not (stopping or finished):
                        self._rebuild()
                elif stopping or finished:
                    self._save(log, "final")
                elif improved:
                    self._save(log, "best")
            # A callback that stops a run has the policy it wanted; on Ctrl-C there is no time for episodes.
            done = self.iteration == config.iterations or not stop.requested
            chosen = done and choose_readout(log, config, self._evaluator, self.callbacks, stop)
        finished = chosen and self.iteration == config.iterations
        reason = "all steps done" if finished else run.stop_reason or "stopped on request"
        log.set_status("finished" if finished else "stopped", reason)
        return Result(log.path, self.step, finished, reason, self.last_evaluation)

    def _begin(self, log: RunLog) -> None:
        """Do what comes before the first iteration: initialize the statistics, evaluate."""
        given = bool(self.config.init_from)
        if given and self.step not in checkpoints.steps(log.path):
            # The other run may train further; this one must resume from the policy it was given.
            self._save(log, "scheduled")
        self._warm_up()
        score = self._evaluate(log)
        if given:
            # Fine-tuning may only make the policy worse; a random policy is never worth keeping.
            self._improves(score)

    def _iterate(self) -> Row:
        """Collect one rollout and update on it; return the iteration's metrics."""
        config = self.config
        if self._trainable != trainable(self.policy):
            raise RuntimeError(
                "parameters of the policy were replaced, frozen or added during the run, which its optimizer does not "
                "know; bring such a module as a plug-in (docs/extending.md), so that the run can also be loaded"
            )
        started = time.perf_counter()
        rollout = self.collector.collect(self.iteration, fresh=self.iteration == self.rebuilt_at)
        self.callbacks.emit("on_rollout", rollout)
        prepared = time.perf_counter()
        batch = self._batch(rollout)
        updating = time.perf_counter()
        learning_rate = config.update.learning_rate
        if config.update.anneal:
            learning_rate *= max(0.0, 1 - self.iteration * config.batch_size / config.schedule_steps)
        bootstrapping = config.advantage.bootstrap_on_termination
        extra_scalars = {"explained_variance": explained_variance(batch), "checksum": checksum(rollout, bootstrapping)}
        losses = self.rule.update(batch, learning_rate, self._generator("shuffle"), extra_scalars)
        require_finite(rollout, bootstrapping, losses.pop("checksum"))
        if sentence := require_finite_update(losses, self.policy.named_parameters(), self.iteration + 1):
            warnings.warn(sentence, stacklevel=2)
        self.policy.update_statistics(rollout.observation)
        self.iteration += 1
        ended = time.perf_counter()
        self.callbacks.emit("on_update", dict(losses))
        seconds = {
            **rollout.seconds,
            "prepare": updating - prepared,
            "update": ended - updating,
            "iteration": ended - started,
        }
        row: Row = {"step": self.step, "iteration": self.iteration}
        row |= self._episodes(rollout) | losses
        row["learning_rate"] = learning_rate
        row |= {f"env/{name}": value for name, value in self._env_attributes.items() if _is_number(value)}
        row |= {f"time/{part}": value for part, value in seconds.items()}
        return row | {"time/sps": config.batch_size / seconds["iteration"]}

    def _batch(self, rollout: Rollout) -> Batch:
        """Return the rollout as a batch, its rewards scaled with statistics that include this rollout."""
        reward = rollout.reward.to(self.device)
        if self.config.normalize.reward:
            reward = self.reward_scaler(reward, rollout.ended.to(self.device))
        return Batch.from_rollout(self.policy, rollout, reward, self.config.advantage)

    def _episodes(self, rollout: Rollout) -> Row:
        """Return statistics of the episodes that ended in this rollout; None if no episode ended."""
        ended = rollout.ended
        since_last_end = (ended.flip(0).cumsum(0) == 0).sum(0)
        self.unfinished = torch.where(ended.any(0), since_last_end, self.unfinished.to(ended.device) + len(ended))
        row: Row = {"return": None, "length": None, "score": None, "episodes": len(rollout.episodes)}
        if rollout.episodes:
            row["return"] = mean(episode.total_reward for episode in rollout.episodes)
            row["length"] = mean(episode.length for episode in rollout.episodes)
            row["score"] = normalized(self.config.task, row["return"])
        return row | success_rates(rollout.episodes)

    def _warm_up(self) -> None:
        """Initialize the observation statistics with random actions, which count as environment steps."""
        if self.config.warmup == 0:
            return
        generator = self._generator("warm-up")
        action = self.spec.action
        # Rounding to a discrete action must not halve the chances of the first and the last.
        margin = 0.5 if action.discrete else 0.0
        low, high = torch.tensor(action.low) - margin, torch.tensor(action.high) + margin
        observation = self.envs.reset(derive_seed(self.config.seed, "warm-up-envs"))
        seen = [observation["state"]]
        for _ in range(self.config.normalize.warmup_steps):
            uniform = torch.rand(self.config.env.num_envs, len(low), generator=generator, device=self.device)
            seen.append(self.envs.step(low + (high - low) * uniform.cpu()).observation["state"])
        # As in a rollout, the observation after the last step does not count.
        states = torch.stack(seen[:-1])
        require_finite_rows(states, "observation 'state'", "of the warm-up")
        self.policy.update_statistics({"state": states.to(self.device)})

    def _cut_share(self) -> float:
        """Return the share of transitions since the last rebuild whose episodes the next rebuild cuts off."""
        return int(self.unfinished.sum()) / ((self.iteration - self.rebuilt_at) * self.config.batch_size)

    def _rebuild(self) -> None:
        """Let the next rollout recreate the environments from its iteration's seed; resuming here changes nothing."""
        self.rebuilt_at = self.iteration
        self.unfinished.zero_()
        self.reward_scaler.forget_episodes()

    def _generator(self, stream: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(derive_seed(self.config.seed, stream, self.iteration))

    def _evaluate(self, log: RunLog) -> checkpoints.Score:
        """Evaluate the policy and log the row; return the score by which policies are ranked."""
        measured = self._evaluator.row(self.policy, self.step, self.iteration)
        self.last_evaluation = log.append("evals", measured)
        self.callbacks.emit("on_evaluation", copy.deepcopy(self.last_evaluation))
        return ranking(measured[ROW_KEYS[self.config.eval.rank_by]])

    def _improves(self, score: checkpoints.Score) -> bool:
        """Return whether `score` is the best so far, and remember it if so."""
        if self.best is not None and score <= self.best[1]:
            return False
        self.best = (self.step, score)
        return True

    def _save(self, log: RunLog, kind: checkpoints.Kind) -> None:
        log.sync()
        best_step, best_score = self.best or (None, None)
        state = checkpoints.State(
            self.step,
            self.iteration,
            kind,
            best_step,
            best_score,
            self.spec,
            env_attributes=self._env_attributes,
            callbacks=self.callbacks.states(),
        )
        trainer = {f"adam/{key}": value for key, value in self.rule.state().items()}
        trainer |= {f"reward/{key}": value for key, value in self.reward_scaler.state_dict().items()}
        path = checkpoint.save(log.path, state, self.policy.state_dict(), trainer)
        checkpoint.prune(log.path, self.config.checkpoint.keep)
        assert self._run is not None
        with self._run.unrecorded():
            self.callbacks.emit("on_checkpoint", path, kind)

    @property
    def _env_attributes(self) -> dict[str, Any]:
        return self._run.env_attributes if self._run else {}

    def restore(self, run: Path, state: checkpoints.State) -> None:
        """Restore everything from a checkpoint of this run."""
        if state.spec != self.spec:
            different = "; ".join(space_differences(self.spec, state.spec)) or "another time limit"
            raise ConfigError(f"the environment is not the one of the run: {different}")
        path = checkpoints.directory(run, state.step)
        self.policy.load_state_dict(checkpoints.load_tensors(path, "policy"))
        trainer = checkpoints.load_tensors(path, "trainer", str(self.device))
        self.rule.load_state(checkpoints.under("adam/", trainer))
        self.reward_scaler.load_state_dict(checkpoints.under("reward/", trainer))
        self.iteration = state.iteration
        self._resumed = state
        if state.best_step is not None and state.best_score is not None:
            self.best = (state.best_step, state.best_score)

    def close(self) -> None:
        """Release worker processes and environments."""
        self.rule.close()
        self.collector.close()
        self._evaluator.close()

    def start_from(self, run: Path, trust: bool = False) -> None:
        """Load the best policy of another run, to fine-tune it."""
        policy, state, config = checkpoints.load_policy(run, trust=trust)
        different = list(space_differences(self.spec, state.spec))
        for section in ("encoder", "actor", "head", "critic"):
            different += setting_differences(getattr(self.config, section), getattr(config, section), section)
        for name in ("observation", "clip"):
            ours, theirs = getattr(self.config.normalize, name), getattr(config.normalize, name)
            if ours != theirs:
                different.append(f"normalize.{name} is {ours}, not {theirs}")
        if different:
            raise ConfigError(
                f"the policy of {run} does not fit this run: {'; '.join(different)}; --init-from needs the same "
                "spaces, variant and network settings"
            )
        self.policy.load_state_dict(policy.state_dict())


def trainable(policy: Policy) -> list[int]:
    """Return the identities of the parameters that an optimizer moves."""
    return [id(parameter) for parameter in policy.parameters() if parameter.requires_grad]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def explained_variance(batch: Batch) -> Tensor:
    """Return 1 - Var(return - value) / Var(return): 1 for a perfect critic, 0 for a constant critic or returns."""
    spread = batch.returns.var()
    return torch.where(spread > 0, 1 - (batch.returns - batch.value).var() / spread, 0.0)
