"""Calls a run's callbacks, and keeps what a logger does from ending the run."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from detent.errors import ConfigError, nearest
from detent.training.callbacks import Callback, RunContext, Status, as_json


class Callbacks:
    """The callbacks of a run, called in order, loggers last."""

    def __init__(self, callbacks: Sequence[Callback] = (), loggers: Sequence[Callback] = ()) -> None:
        for callback in (*callbacks, *loggers):
            _require_callback(callback)
        self._callbacks, self._loggers = list(callbacks), list(loggers)
        self._dropped: list[Callback] = []
        self._started: list[Callback] = []
        self._absent: dict[str, Any] = {}
        self._run: RunContext | None = None

    def start(self, run: RunContext, env_attributes: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """Start a run, resumed with what its checkpoint recorded: `env_attributes` and the callbacks' `states`."""
        self._run = run
        named = self._named()
        self._absent = {name: state for name, state in states.items() if name not in named}
        self._warn_of_absent(env_attributes)
        for name, callback in named.items():
            if name in states:
                callback.restore(states[name])
        self.emit("on_run_start")
        if env_attributes:
            # After on_run_start, which may set the values of a fresh start again.
            run.set_env(**env_attributes)
        # A state that cannot be saved is found before the first iteration, not at the first checkpoint.
        self.states()

    def _warn_of_absent(self, env_attributes: Mapping[str, Any]) -> None:
        """Warn of callbacks that the run had before it was resumed and now lacks."""
        own = [callback for callback in self._callbacks if not type(callback).__module__.startswith("detent.")]
        missing = ", ".join(self._absent) or ("the one that set " + ", ".join(env_attributes) if env_attributes else "")
        if self._absent or (env_attributes and not own):
            warnings.warn(f"the run is resumed without callbacks that it had: {missing}", stacklevel=4)

    def emit(self, event: str, *arguments: Any) -> None:
        """Call the method `event` of every callback with the run and `arguments`."""
        for callback in self._callbacks:
            try:
                getattr(callback, event)(self._run, *arguments)
            except Exception as error:
                error.add_note(f"raised in {event} of the callback {type(callback).__name__}")
                raise
            self._note_start(event, callback)
        for logger in list(self._loggers):
            with self._dropped_on_failure(logger):
                getattr(logger, event)(self._run, *arguments)
                self._note_start(event, logger)

    def _note_start(self, event: str, callback: Callback) -> None:
        if event == "on_run_start":
            self._started.append(callback)

    def message(self, text: str) -> None:
        for callback in self._callbacks:
            callback.on_message(text)
        for logger in list(self._loggers):
            with self._dropped_on_failure(logger):
                logger.on_message(text)

    @contextlib.contextmanager
    def _dropped_on_failure(self, logger: Callback) -> Any:
        try:
            yield
        except Exception as error:
            self._loggers.remove(logger)
            self._dropped.append(logger)
            _warn(f"the logger {type(logger).__name__} failed", error, "the run continues without it")

    def end(self, status: Status) -> None:
        """End the run for every callback that it started, even if one of them fails."""
        run, self._run = self._run, None
        if run is None:
            return
        with run.unrecorded():
            for callback in self._started:
                try:
                    callback.on_run_end(run, status)
                except Exception as error:
                    # Of a logger that was dropped, one warning is enough.
                    if callback not in self._dropped:
                        name = type(callback).__name__
                        _warn(f"on_run_end of {name} failed", error, "the run has ended all the same")
        self._started = []

    def states(self) -> dict[str, Any]:
        """Return the states of the callbacks that have any, by name, as JSON; also of those this process lacks."""
        found = {name: callback.state() for name, callback in self._named().items()}
        return self._absent | {
            name: as_json(state, f"the state of the callback {name} is {state!r}")
            for name, state in found.items()
            if state
        }

    def _named(self) -> dict[str, Callback]:
        """Return the callbacks by class name, numbered where a class occurs again."""
        seen: Counter[str] = Counter()
        out = {}
        for callback in self._callbacks:
            name = type(callback).__name__
            seen[name] += 1
            out[name if seen[name] == 1 else f"{name}-{seen[name]}"] = callback
        return out


def _require_callback(callback: object) -> None:
    """Refuse what is not a callback, and a callback with a method that no run calls."""
    if not isinstance(callback, Callback):
        hint = " (give an instance, not the class)" if isinstance(callback, type) else ""
        raise ConfigError(f"callbacks has {callback!r}, which is not a detent.Callback{hint}")
    events = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(callback):
        if name.startswith("on_") and name not in events:
            raise ConfigError(
                f"the callback {type(callback).__name__} has a method {name}, which no run calls; "
                f"{nearest(name, events)}"
            )


def _warn(what: str, error: Exception, then: str) -> None:
    warnings.warn(f"{what} ({type(error).__name__}: {error}); {then}", stacklevel=4)
