"""Callbacks: what a run calls as it trains. The progress display, loggers and your own hooks all are callbacks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from detent.config import Config
from detent.envs import AdjustableEnv, DivisibleEnv, VectorEnv
from detent.errors import ConfigError

if TYPE_CHECKING:
    from detent.models.policy import Policy
    from detent.rollouts.rollout import Rollout

Row = dict[str, Any]
Status = Literal["finished", "stopped", "failed"]


class Callback:
    """Override the methods you need; a run calls them in its own process and waits for them.

    A callback that raises an exception ends the run, unless the run uses it as a logger (`--log`): a logger that fails
    is dropped with a warning.
    """

    def on_run_start(self, run: RunContext) -> None:
        """Called once before the first step, also when a run is resumed (`run.iteration` is then not 0)."""

    def on_rollout(self, run: RunContext, rollout: Rollout) -> None:
        """Called with each rollout before the update; its buffers are reused for the next one."""

    def on_update(self, run: RunContext, metrics: Row) -> None:
        """Called after each update with its metrics: losses, KL, entropy, gradient statistics."""

    def on_iteration(self, run: RunContext, row: Row) -> None:
        """Called after each iteration with its row of `metrics.jsonl`."""

    def on_evaluation(self, run: RunContext, row: Row) -> None:
        """Called after each evaluation with its row of `evals.jsonl`."""

    def on_checkpoint(self, run: RunContext, path: Path, kind: str) -> None:
        """Called after a checkpoint was written; `kind` is `scheduled`, `best` or `final`."""

    def on_message(self, text: str) -> None:
        """Called with sentences for the user, possibly before the run starts."""

    def on_run_end(self, run: RunContext, status: Status) -> None:
        """Called once at the end, however the run ended."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue exactly, as JSON; saved in every checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, before `on_run_start` of a resumed run."""


class OnIteration(Callback):
    """A function called after each iteration with its row and the policy; if it returns True, the run stops."""

    def __init__(self, function: Callable[[Row, Policy], bool | None]) -> None:
        self._function = function

    def on_iteration(self, run: RunContext, row: Row) -> None:
        if self._function(row, run.policy):
            run.stop("stopped by on_iteration")


class TrainerState(Protocol):
    """The parts of a trainer that a run's context reads."""

    config: Config
    envs: VectorEnv
    iteration: int

    @property
    def step(self) -> int: ...


class RunContext:
    """A run as its callbacks see it, and what they may ask of it."""

    def __init__(
        self,
        trainer: TrainerState,
        path: Path,
        policy: Policy | None,
        wall_time: Callable[[], float],
        notes: Sequence[str] = (),
    ) -> None:
        self._trainer, self._policy, self._wall_time = trainer, policy, wall_time
        self.path = path
        """The run directory."""
        self.notes = tuple(notes)
        """Sentences about the run for the user."""
        self.stop_reason: str | None = None
        """Why a callback asked to stop; None if none did."""
        self._env_attributes: dict[str, Any] = {}
        self._recording = True

    @property
    def config(self) -> Config:
        return self._trainer.config

    @property
    def step(self) -> int:
        """Return the number of environment steps so far."""
        return self._trainer.step

    @property
    def iteration(self) -> int:
        """Return the number of iterations so far."""
        return self._trainer.iteration

    @property
    def wall_time(self) -> float:
        """Return the seconds spent on this run, over all processes that worked on it."""
        return self._wall_time()

    @property
    def policy(self) -> Policy:
        """Return the policy. With several processes, in-place writes to its tensors reach all, replaced ones do not."""
        if self._policy is None:
            raise RuntimeError(f"a {self.config.algo} run has no Detent policy")
        return self._policy

    @property
    def env_attributes(self) -> dict[str, Any]:
        """Return the attributes set so far by `set_env`, by name."""
        return copy.deepcopy(self._env_attributes)

    def stop(self, reason: str = "stopped by a callback") -> None:
        """Stop the run after this iteration, with a checkpoint."""
        self.stop_reason = reason

    def set_env(self, **attributes: Any) -> None:
        """Set attributes of every training environment, at once and for the rest of the run: a curriculum.

        The values (numbers, text, booleans, lists and dicts of them) are saved in checkpoints and set again whenever
        environments are rebuilt, so a resumed run is exact. Evaluation environments keep the task as it is.
        """
        if not self._recording:
            raise RuntimeError(
                "set_env was called in on_checkpoint or on_run_end, where no checkpoint would record it; call it in "
                "on_iteration or on_evaluation"
            )
        # A resumed run sets what the checkpoint's JSON gives, so that is what this run sets too.
        recorded = {name: as_json(value, f"set_env was given {name}={value!r}") for name, value in attributes.items()}
        envs = self._trainer.envs
        if not isinstance(envs, AdjustableEnv):
            raise ConfigError(
                f"the environments of {self.config.task} ({self.config.env.backend}) have no attributes that a "
                "callback can set; use --env.backend gymnasium"
            )
        if isinstance(envs, DivisibleEnv) and self.config.update.processes > 1:
            raise ConfigError(
                f"the environments of {self.config.task} are divided among processes, where a callback cannot set "
                "their attributes; use --update.processes 1"
            )
        envs.set_attributes(recorded)
        self._env_attributes |= recorded

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Refuse changes of environment attributes that no checkpoint would record."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True


def as_json(value: Any, what: str) -> Any:
    """Return `value` as it comes back from JSON, with NumPy's numbers as Python's; `what` begins the error sentence."""
    try:
        back = json.loads(json.dumps(value, default=lambda number: number.item()))
        if back == value:
            return back
    except (TypeError, ValueError, AttributeError):
        pass
    raise RuntimeError(
        f"{what}, which checkpoints cannot record; use numbers, text, booleans, and lists or dicts of them"
    )
