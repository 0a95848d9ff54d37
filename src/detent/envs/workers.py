"""Environments in worker processes: each worker steps several in turn, and data crosses in shared memory."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from detent.envs.base import Episode, Step
from detent.errors import ConfigError
from detent.spec import EnvSpec, Observation

Result = TypeVar("Result")
Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"
"""One observation, by key."""


class WorkerEnv(Protocol):
    """One environment of a worker; the step that ends an episode begins the next one."""

    def reset(self, seed: int) -> Arrays:
        """Rebuild the environment from `seed`; return the first observation."""
        ...

    def step(self, action: NDArray[np.float64]) -> SingleStep: ...

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the environment."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SingleStep:
    """One transition of one environment, with the fields of `Step`."""

    observation: Arrays
    reward: float
    terminated: bool
    truncated: bool
    final_observation: Arrays | None = None
    episode: Episode | None = None


def process_context(preload: Sequence[str]) -> ForkServerContext | SpawnContext:
    """Return the context that starts workers: forked ones would inherit torch's threads in an unusable state; the fork
    server starts without them and imports `preload` once for all its children."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


class ProcessDiedError(RuntimeError):
    """A process ended without an answer; the message says how."""


def call_in_process(function: Callable[..., Result], arguments: Sequence[Any], preload: Sequence[str]) -> Result:
    """Return the result of `function(*arguments)` in a separate process, or raise the ConfigError it raises there."""
    context = process_context(preload)
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        outcome, content = ours.recv()
    except EOFError:
        process.join()
        raise ProcessDiedError(how_it_ended(process.exitcode or 0)) from None
    process.join()
    if outcome == "refused":
        raise content
    answer: Result = content
    return answer


def _answer(connection: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        connection.send(("done", function(*arguments)))
    except ConfigError as error:
        connection.send(("refused", error))


@dataclass(frozen=True)
class _Field:
    """An array in the shared block, with one row per environment."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, block: Any) -> NDArray[Any]:
        count = int(np.prod(self.shape))
        return np.frombuffer(block, self.dtype, count, self.offset).reshape(self.shape)


def _lay_out(spec: EnvSpec, num_envs: int) -> tuple[dict[str, _Field], int]:
    """Return the fields of the shared block and its size in bytes."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "action": ((spec.action.size,), "float64"),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
    }
    for key, (shape, dtype) in spec.observation.parts.items():
        shapes |= {f"observation/{key}": (shape, dtype), f"final/{key}": (shape, dtype)}
    fields, offset = {}, 0
    for name, (shape, dtype) in shapes.items():
        field = _Field(offset, (num_envs, *shape), dtype)
        fields[name] = field
        size = int(np.prod(field.shape)) * np.dtype(dtype).itemsize
        # Each field starts on its own cache line.
        offset += -(-size // 64) * 64
    return fields, offset


def _write(views: Mapping[str, NDArray[Any]], prefix: str, row: int, observation: Arrays) -> None:
    for key, value in observation.items():
        views[f"{prefix}/{key}"][row] = value


def _serve(
    connection: Connection, makers: Mapping[int, Callable[[], WorkerEnv]], fields: Mapping[str, _Field], block: Any
) -> None:
    """Run a worker: make its environments, then obey commands until it is closed or the parent process is gone."""
    # Ctrl-C reaches the whole process group; the trainer decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    views = {name: field.view(block) for name, field in fields.items()}
    # Simulators need no gradients, and those that use tensors run faster without autograd's bookkeeping.
    with torch.inference_mode():
        envs: dict[int, WorkerEnv] = {}
        while True:
            try:
                command, argument = connection.recv()
            except EOFError:
                return
            try:
                if command == "close":
                    for env in envs.values():
                        env.close()
                    return
                envs = envs or {row: maker() for row, maker in makers.items()}
                if command == "reset":
                    for row, env in envs.items():
                        _write(views, "observation", row, env.reset(argument[row]))
                    connection.send(("done", []))
                elif command == "set":
                    for env in envs.values():
                        env.set_attributes(argument)
                    connection.send(("done", []))
                else:
                    connection.send(("done", list(_step(envs, views))))
            except Exception as error:
                connection.send(("failed", f"{error}"))


def _step(envs: Mapping[int, WorkerEnv], views: Mapping[str, NDArray[Any]]) -> Iterator[Episode]:
    """Step every environment of a worker; yield the episodes that ended."""
    for row, env in envs.items():
        step = env.step(views["action"][row])
        _write(views, "observation", row, step.observation)
        views["reward"][row] = step.reward
        views["terminated"][row] = step.terminated
        views["truncated"][row] = step.truncated
        if step.final_observation is not None:
            _write(views, "final", row, step.final_observation)
        if step.episode is not None:
            yield step.episode


class WorkerPool:
    """`len(makers)` environments, spread evenly over `workers` processes.

    What an environment computes does not depend on its worker, so the number of workers affects only speed.
    """

    def __init__(
        self, task: str, makers: Sequence[Callable[[], WorkerEnv]], workers: int, spec: EnvSpec, preload: Sequence[str]
    ) -> None:
        self._task = task
        context = process_context(preload)
        fields, size = _lay_out(spec, len(makers))
        block = context.RawArray("b", size)
        self._views = {name: field.view(block) for name, field in fields.items()}
        self._keys = tuple(spec.observation.parts)
        self._rows = [rows.tolist() for rows in np.array_split(np.arange(len(makers)), min(workers, len(makers)))]
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for rows in self._rows:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, {row: makers[row] for row in rows}, fields, block), daemon=True
            )
            with self._deaths_named():
                process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Rebuild every environment from its seed."""
        self._ask("reset", list(seeds))
        return self._observation("observation")

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of every environment."""
        if attributes:
            self._ask("set", dict(attributes))

    def step(self, action: NDArray[np.float64]) -> Step:
        self._views["action"][:] = action
        episodes = self._ask("step", None)
        ended = bool((self._views["terminated"] | self._views["truncated"]).any())
        return Step(
            observation=self._observation("observation"),
            reward=torch.from_numpy(self._views["reward"].copy()),
            terminated=torch.from_numpy(self._views["terminated"].copy()),
            truncated=torch.from_numpy(self._views["truncated"].copy()),
            final_observation=self._observation("final") if ended else None,
            episodes=tuple(episodes),
        )

    def _observation(self, prefix: str) -> Observation:
        """Copy an observation, because the next step fills the same memory."""
        return {key: torch.from_numpy(self._views[f"{prefix}/{key}"].copy()) for key in self._keys}

    def _ask(self, command: str, argument: Any) -> list[Episode]:
        """Send a command to all workers at once; return the episodes that ended, in the order of environments."""
        with self._deaths_named():
            for connection in self._connections:
                connection.send((command, argument))
            answers = [connection.recv() for connection in self._connections]
        for outcome, content in answers:
            if outcome == "failed":
                self.kill()
                raise RuntimeError(content)
        return [episode for _, episodes in answers for episode in episodes]

    def close(self) -> None:
        try:
            for connection in self._connections:
                connection.send(("close", None))
        except OSError:
            self.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._connections = []

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    @contextmanager
    def _deaths_named(self) -> Iterator[None]:
        """Raise a readable error about a dead worker instead of an EOFError or a broken pipe."""
        try:
            yield
        except (EOFError, OSError):
            sentence = self._who_died()
            self.kill()
            raise RuntimeError(sentence) from None

    def _who_died(self) -> str:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            for rows, process in zip(self._rows, self._processes, strict=False):
                if process.exitcode is not None:
                    several = len(rows) > 1
                    who = f"environments {rows[0]} to {rows[-1]}" if several else f"environment {rows[0]}"
                    return f"the worker process of {who} ({self._task}) {how_it_ended(process.exitcode)}"
            time.sleep(0.01)
        return f"a worker process of {self._task} closed its connection"


def how_it_ended(code: int) -> str:
    """Describe a process's exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    how = f"was killed by signal {-code}"
    return how + " (the system does this when memory runs out)" if -code == signal.SIGKILL else how
