"""Detent as its users run it, paused after every iteration, and the memory that its processes hold."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from detent.acceleration.flat_adam import FlatAdam
from detent.algorithms import minibatch
from detent.algorithms.gradient_variance import GradientVariance
from detent.algorithms.optimizer import AdamOptimizer
from detent.bench.worker import Requests
from detent.config import CheckpointConfig, Config, EvalConfig
from detent.training import run
from detent.training.callbacks import Row

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
_NEVER = 10**12


class Stopwatch:
    """Adds up the time spent in a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        def timed(*arguments: Arguments.args, **options: Arguments.kwargs) -> Returned:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def train_in_slices(config: Config, requests: Requests, with_memory: bool) -> None:
    """Run a real training that never ends by itself; each iteration is a slice."""
    config = replace(
        config,
        steps=_NEVER,
        schedule_steps=_NEVER,
        eval=EvalConfig(interval=_NEVER, episodes=1, num_envs=1),
        checkpoint=CheckpointConfig(interval=_NEVER),
    )
    step, in_step, beside_step = Stopwatch(), Stopwatch(), Stopwatch()
    for optimizer in (FlatAdam, AdamOptimizer):
        instrument(optimizer, "step", step)
    # Functions that run only because of update.diagnostics.
    instrument(GradientVariance, "add", in_step)
    for owner, name in ((GradientVariance, "__init__"), (GradientVariance, "end_epoch"), (GradientVariance, "metrics")):
        instrument(owner, name, beside_step)
    instrument(minibatch, "by_dimension", beside_step)
    memory = PeakMemory() if with_memory else None
    started = 0.0

    def after_iteration(row: Row, _: object) -> None:
        nonlocal started
        if not started:
            # The first iteration, which forks the processes and fills caches, is not measured.
            going_on = requests.wait()
        elif memory is not None:
            going_on = requests.report({"bytes": memory.peak()})
        else:
            parts = {part: row[f"time/{part}"] for part in ("simulate", "act", "prepare")}
            parts["optimizer"] = step.seconds - in_step.seconds
            parts["forward and backward"] = row["time/update"] - step.seconds - beside_step.seconds
            parts["diagnostics"] = in_step.seconds + beside_step.seconds
            parts["other"] = time.perf_counter() - started - sum(parts.values())
            going_on = requests.report(parts)
        if not going_on:
            # Exit at once, without the checkpoint that a run stopped on request would save.
            raise SystemExit(0)
        for stopwatch in (step, in_step, beside_step):
            stopwatch.seconds = 0.0
        started = time.perf_counter()

    with tempfile.TemporaryDirectory() as directory:
        run.train(config, out=Path(directory) / "run", on_iteration=after_iteration)


def instrument(owner: object, name: str, stopwatch: Stopwatch) -> None:
    """Time a method of all objects of a class, or a function of a module; each call takes a microsecond longer."""
    setattr(owner, name, stopwatch.around(getattr(owner, name)))


class PeakMemory(threading.Thread):
    """Samples the memory of this process and its children together, twenty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._peak = 0.0
        self.start()

    def run(self) -> None:
        while True:
            self._peak = max(self._peak, held_memory(os.getpid()))
            time.sleep(0.05)

    def peak(self) -> float:
        """Return the peak in bytes."""
        return self._peak


def held_memory(pid: int) -> float:
    """Return the bytes that a process and its children hold; shared memory and files (libraries) count once."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    own = files = 0.0
    for each in pids:
        try:
            sizes = _sizes(f"/proc/{each}/smaps_rollup")
            files = max(files, _sizes(f"/proc/{each}/status")["RssFile"])
        except (OSError, KeyError):
            # The process ended in the meantime.
            continue
        own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
    return own + files


def _sizes(path: str) -> dict[str, float]:
    """Parse lines `name: 123 kB` into bytes by name."""
    words = [line.split() for line in Path(path).read_text().splitlines()]
    return {word[0].removesuffix(":"): 1024.0 * int(word[1]) for word in words if word[2:] == ["kB"]}
