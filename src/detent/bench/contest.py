"""Contenders take turns: only one works at a time, and each round measures all of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from detent.bench.slices import Spread, ratios, slice_of, spread, steps_per_second, whole_iteration
from detent.config import Config, to_dict
from detent.presets import table
from detent.threads import WAIT_POLICY

LEAST_SECONDS = 1.0
"""How long a contender works in its turn, at least."""

Report = dict[str, Any]
Say = Callable[[str], None]


class Worker:
    """A contender in its own process (`detent.bench.worker`), doing slices of `config`."""

    def __init__(self, kind: str, config: Config, full: bool = False) -> None:
        self.config = config
        self.sliced = config if full else slice_of(config)
        self._what = f"{kind} on {config.task}"
        # Somewhere else, because MuJoCo leaves its log where it runs; a task of the user's own is still found.
        self._place = tempfile.TemporaryDirectory()
        self._words = Path(self._place.name) / "words"
        environment = {name: value for name, value in os.environ.items() if name not in WAIT_POLICY}
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
        with self._words.open("w") as words:
            # Without our wait policy: everybody gets the thread settings of their own users.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "detent.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                env=environment,
                cwd=self._place.name,
            )
        self._slices = 1
        self._write(json.dumps({"kind": kind, "config": to_dict(self.sliced)}))

    def ask(self) -> None:
        """Begin a turn."""
        self._write(str(self._slices))

    def answer(self) -> dict[str, float]:
        """Wait for the end of the turn; mean seconds of a slice by part."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            self._process.wait()
            last = (self._words.read_text().strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"measuring {self._what} failed: {last}")
        parts: dict[str, float] = json.loads(line)
        return parts

    def warm_up(self) -> None:
        """One slice that does not count; it tells how many make a turn."""
        self.ask()
        self._slices = max(1, round(LEAST_SECONDS / sum(self.answer().values())))

    def measure(self) -> dict[str, float]:
        """The seconds of a whole iteration by part."""
        self.ask()
        return whole_iteration(self.answer(), self.sliced, self.config)

    def speed(self) -> float:
        return steps_per_second(self.measure(), self.config)

    def dismiss(self) -> None:
        """Nothing more is asked for; the process ends."""
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()

    def close(self) -> None:
        self.dismiss()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._place.cleanup()

    def _write(self, line: str) -> None:
        # A process that is gone is noticed, with its words, when it does not answer.
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).write(line + "\n")
            _pipe(self._process.stdin).flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextlib.contextmanager
def started(wanted: Mapping[str, tuple[str, Config]], full: bool) -> Iterator[dict[str, Worker]]:
    """Workers by name; `wanted` are their kinds and configurations."""
    workers: dict[str, Worker] = {}
    try:
        for name, (kind, config) in wanted.items():
            workers[name] = Worker(kind, config, full)
        yield workers
    finally:
        for worker in workers.values():
            worker.dismiss()
        for worker in workers.values():
            worker.close()


def warm_up(workers: Mapping[str, Worker]) -> None:
    for worker in workers.values():
        worker.warm_up()


def take_turns(workers: Mapping[str, Worker], repeats: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of a whole iteration by part, for every contender and round; every other round goes backwards."""
    warm_up(workers)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    names = list(workers)
    for i in range(repeats):
        for name in names if i % 2 == 0 else reversed(names):
            measured[name].append(workers[name].measure())
    return measured


def peer_missing(config: Config) -> str | None:
    """Why Stable-Baselines3 cannot be measured on this; None when it can."""
    if find_spec("stable_baselines3") is None:
        return "Stable-Baselines3 is left out, it is not installed: pip install stable-baselines3"
    if config.head.kind == "loss-swap" or config.head.mean != "plain" or config.head.log_std != "state-independent":
        return "Stable-Baselines3 is left out, it has no such action distribution"
    return None


def run_case(config: Config, repeats: int, full: bool) -> Report:
    """Detent, peer and limit on one configuration, which must be resolved."""
    quiet = replace(config, update=replace(config.update, diagnostics=False))
    wanted = {"detent": ("detent", config), "without diagnostics": ("detent", quiet), "limit": ("limit", config)}
    missing = peer_missing(config)
    if missing is None:
        wanted["sb3"] = ("sb3", config)
    with started(wanted, full) as workers:
        # It is not timed, so it does no harm that the others are still starting.
        memory = peak_memory(config)
        sliced = workers["detent"].sliced
        measured = take_turns(workers, repeats)
    speeds = {
        name: spread([steps_per_second(iteration, config) for iteration in rounds]) for name, rounds in measured.items()
    }
    return {
        **about(config, sliced, full),
        "steps_per_second": {name: speed.as_dict() for name, speed in speeds.items()},
        "times_sb3": ratios(speeds["detent"], speeds["sb3"]).as_dict() if "sb3" in speeds else None,
        "share_of_limit": ratios(speeds["detent"], speeds["limit"]).as_dict(),
        "diagnostics_cost": diagnostics_cost(speeds["detent"], speeds["without diagnostics"]).as_dict(),
        "split": split(measured["detent"], measured["without diagnostics"]),
        "limit": limit_report(config, measured["limit"]),
        "peak_memory_bytes": memory,
        "note": missing,
    }


def about(config: Config, sliced: Config, full: bool) -> Report:
    return {
        "task": config.task,
        "variant": config.variant,
        "preset": config.preset,
        "threads": config.threads,
        "processes": config.update.processes,
        "measured": "whole iterations" if full else "slices",
        "slice": {
            "rollout_steps": sliced.rollout_steps,
            "minibatches": sliced.update.minibatches,
            "epochs": sliced.update.epochs,
        },
    }


def diagnostics_cost(with_them: Spread, without: Spread) -> Spread:
    """The share of time that the diagnostics add, by rounds."""
    return spread([quotient - 1 for quotient in ratios(without, with_them).rounds])


def split(with_diagnostics: Sequence[Mapping[str, float]], without: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Shares of an iteration's time, by medians over rounds; what diagnostics cost is a part of its own.

    The other parts are those of the run without diagnostics, so all of them add up to the run with them.
    """
    parts = {name: spread([iteration[name] for iteration in without]).median for name in without[0]}
    base = spread([sum(iteration.values()) for iteration in without])
    total = spread([sum(iteration.values()) for iteration in with_diagnostics])
    parts["diagnostics"] = sum(parts.values()) * (ratios(total, base).median - 1)
    return {name: seconds / sum(parts.values()) for name, seconds in parts.items()}


def limit_report(config: Config, rounds: Sequence[Mapping[str, float]]) -> Report:
    """What the limit is made of: seconds of an iteration by part, and the rates they come from."""
    from detent.bench.limit import flops_of

    seconds = {name: spread([iteration[name] for iteration in rounds]) for name in rounds[0]}
    flops = flops_of(config)
    return {
        "seconds": {name: value.as_dict() for name, value in seconds.items()},
        "flops": flops,
        "gflops_per_second": {name: flops[name] / seconds[name].median / 1e9 for name in flops},
        "simulator_steps_per_second": config.batch_size / seconds["simulate"].median,
    }


def peak_memory(config: Config) -> float | None:
    """Bytes that Detent's processes hold at most in a whole rollout and one epoch of updates; None if not on Linux."""
    if sys.platform != "linux":
        return None
    worker = Worker("memory", replace(config, update=replace(config.update, epochs=1)), full=True)
    try:
        worker.ask()
        return worker.answer()["bytes"]
    finally:
        worker.close()


def run_company(config: Config, repeats: int, full: bool) -> Report:
    """Detent beside a process that burns a core, and a one-thread run for every thread instead of one run with all."""
    wanted = {"all threads": ("detent", config)}
    single = replace(config, threads=1, update=replace(config.update, processes=1))
    wanted |= {f"one thread {i}": ("detent", single) for i in range(config.threads)}
    speeds: dict[str, list[float]] = {"quiet": [], "beside a burning core": [], "side by side": []}
    with started(wanted, full) as workers:
        warm_up(workers)
        together = workers["all threads"]
        others = [worker for name, worker in workers.items() if name != "all threads"]
        for _ in range(repeats):
            speeds["quiet"].append(together.speed())
            with burning_core():
                speeds["beside a burning core"].append(together.speed())
            for worker in others:
                worker.ask()
            answers = [whole_iteration(worker.answer(), worker.sliced, config) for worker in others]
            speeds["side by side"].append(sum(steps_per_second(answer, config) for answer in answers))
    found = {name: spread(rounds) for name, rounds in speeds.items()}
    return {
        **about(config, together.sliced, full),
        "steps_per_second": {name: speed.as_dict() for name, speed in found.items()},
        "kept_in_company": ratios(found["beside a burning core"], found["quiet"]).as_dict(),
        "side_by_side_gain": ratios(found["side by side"], found["quiet"]).as_dict(),
    }


@contextlib.contextmanager
def burning_core() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_table(name: str, configs: Mapping[str, Sequence[Config]], repeats: int, full: bool, say: Say) -> Report:
    """Detent's speed for every row of one of the paper's tables: the mean over the row's tasks."""
    tasks = range(len(next(iter(configs.values()))))
    by_task = []
    for i in tasks:
        say(f"{name} on {next(iter(configs.values()))[i].task} ...")
        with started({row: ("detent", columns[i]) for row, columns in configs.items()}, full) as workers:
            by_task.append(take_turns(workers, repeats))
    rows = {}
    for row, columns in configs.items():
        speeds = [[steps_per_second(each, columns[i]) for each in by_task[i][row]] for i in tasks]
        rows[row] = {
            "steps_per_second": spread([sum(round_) / len(tasks) for round_ in zip(*speeds, strict=True)]).as_dict(),
            "by_task": {columns[i].task: spread(speeds[i]).as_dict() for i in tasks},
            "paper": table("paper_runtime")[name][row]["sps"],
        }
    return {"table": name, "measured": "whole iterations" if full else "slices", "rows": rows}
