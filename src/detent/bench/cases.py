"""Benchmark cases: Detent beside its peer and the machine's limit, under load, by engine, and by row of a table."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from detent.bench.limit import flops_of
from detent.bench.scheduling import Say, Worker, started, take_turns, warm_up
from detent.bench.slices import Timing, ratios, steps_per_second, timing, whole_iteration
from detent.config import Config
from detent.paper.scores import paper_runtime

Report = dict[str, Any]


def peer_missing(config: Config) -> str | None:
    """Return why Stable-Baselines3 cannot be measured on this configuration; None if it can."""
    if find_spec("stable_baselines3") is None:
        return "Stable-Baselines3 is left out, it is not installed: pip install stable-baselines3"
    if config.head.kind == "loss-swap" or config.head.mean != "plain" or config.head.log_std != "state-independent":
        return "Stable-Baselines3 is left out, it has no such action distribution"
    return None


def run_case(config: Config, repeats: int, full: bool, say: Say, compiled: bool = False) -> Report:
    """Measure Detent, peer and limit on one resolved configuration; with `compiled`, Detent also compiled."""
    wanted = {"detent": ("detent", config), "limit": ("limit", config)}
    if compiled:
        # First, so that it is done compiling when the others warm up.
        wanted = {"compiled": ("detent", replace(config, update=replace(config.update, compile=True)))} | wanted
    missing = peer_missing(config)
    if missing is None:
        wanted["sb3"] = ("sb3", config)
    with started(wanted, full) as workers:
        # Memory is not timed, so the workers may still be starting meanwhile.
        say("  peak memory")
        memory = peak_memory(config)
        sliced = workers["detent"].sliced
        measured = take_turns(workers, repeats, say)
    speeds = {
        name: timing([steps_per_second(iteration, config) for iteration in rounds]) for name, rounds in measured.items()
    }
    return {
        **about(config, sliced, full),
        "steps_per_second": {name: speed.as_dict() for name, speed in speeds.items()},
        "times_sb3": ratios(speeds["detent"], speeds["sb3"]).as_dict() if "sb3" in speeds else None,
        "share_of_limit": ratios(speeds["detent"], speeds["limit"]).as_dict(),
        "compiled_gain": ratios(speeds["compiled"], speeds["detent"]).as_dict() if compiled else None,
        "diagnostics_cost": diagnostics_cost(measured["detent"]).as_dict(),
        "split": split(measured["detent"]),
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


def diagnostics_cost(rounds: Sequence[Mapping[str, float]]) -> Timing:
    """Return the time of the gradient diagnostics relative to everything else, by round."""
    return timing([parts["diagnostics"] / (sum(parts.values()) - parts["diagnostics"]) for parts in rounds])


def split(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each part's share of an iteration's time, from medians over rounds."""
    parts = {name: timing([iteration[name] for iteration in rounds]).median for name in rounds[0]}
    return {name: seconds / sum(parts.values()) for name, seconds in parts.items()}


def limit_report(config: Config, rounds: Sequence[Mapping[str, float]]) -> Report:
    """Return the details of the limit: seconds of an iteration by part, and the rates they come from."""
    seconds = {name: timing([iteration[name] for iteration in rounds]) for name in rounds[0]}
    flops = flops_of(config)
    return {
        "seconds": {name: value.as_dict() for name, value in seconds.items()},
        "flops": flops,
        "gflops_per_second": {name: flops[name] / seconds[name].median / 1e9 for name in flops},
        "simulator_steps_per_second": config.batch_size / seconds["simulate"].median,
    }


def peak_memory(config: Config) -> float | None:
    """Return the peak memory of Detent's processes over two iterations of one epoch, in bytes; None if not on Linux."""
    if sys.platform != "linux":
        return None
    worker = Worker("memory", replace(config, update=replace(config.update, epochs=1)), full=True)
    try:
        worker.ask()
        return worker.answer()["bytes"]
    finally:
        worker.close()


def run_under_load(config: Config, repeats: int, full: bool, say: Say) -> Report:
    """Measure Detent beside a process that keeps a core busy, and as one one-thread run per thread, side by side."""
    wanted = {"all threads": ("detent", config)}
    single = replace(config, threads=1, update=replace(config.update, processes=1))
    wanted |= {f"one thread {i}": ("detent", single) for i in range(config.threads)}
    speeds: dict[str, list[float]] = {"quiet": [], "beside a busy core": [], "side by side": []}
    with started(wanted, full) as workers:
        say(f"  warming up: {', '.join(workers)}")
        warm_up(workers)
        together = workers["all threads"]
        others = [worker for name, worker in workers.items() if name != "all threads"]
        for i in range(repeats):
            say(f"  round {i + 1} of {repeats}")
            speeds["quiet"].append(together.speed())
            with busy_core():
                speeds["beside a busy core"].append(together.speed())
            for worker in others:
                worker.ask()
            answers = [whole_iteration(worker.answer(), worker.sliced, config) for worker in others]
            speeds["side by side"].append(sum(steps_per_second(answer, config) for answer in answers))
    found = {name: timing(rounds) for name, rounds in speeds.items()}
    return {
        **about(config, together.sliced, full),
        "steps_per_second": {name: speed.as_dict() for name, speed in found.items()},
        "kept_under_load": ratios(found["beside a busy core"], found["quiet"]).as_dict(),
        "side_by_side_gain": ratios(found["side by side"], found["quiet"]).as_dict(),
    }


def run_engines(config: Config, repeats: int, full: bool, say: Say) -> Report:
    """Measure Detent with both engines, with one thread and with all."""
    one = replace(config, threads=1, update=replace(config.update, processes=1))
    wanted = {
        "autograd, 1 thread": replace(one, update=replace(one.update, engine="autograd")),
        "autograd": replace(config, update=replace(config.update, engine="autograd", processes=1)),
        "accelerated, 1 process": one,
        "accelerated": config,
    }
    with started({name: ("detent", each) for name, each in wanted.items()}, full) as workers:
        sliced = workers["accelerated"].sliced
        measured = take_turns(workers, repeats, say)
    speeds = {
        name: timing([steps_per_second(iteration, config) for iteration in rounds]) for name, rounds in measured.items()
    }
    return {
        **about(config, sliced, full),
        "steps_per_second": {name: speed.as_dict() for name, speed in speeds.items()},
        "times_autograd": {name: ratios(speed, speeds["autograd"]).as_dict() for name, speed in speeds.items()},
    }


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_table(name: str, configs: Mapping[str, Sequence[Config]], repeats: int, full: bool, say: Say) -> Report:
    """Measure Detent's speed for every row of one of the paper's tables: the mean over the row's tasks."""
    tasks = range(len(next(iter(configs.values()))))
    by_task = []
    for i in tasks:
        say(f"table {name}, task {i + 1} of {len(tasks)}: {next(iter(configs.values()))[i].task}")
        with started({row: ("detent", columns[i]) for row, columns in configs.items()}, full) as workers:
            by_task.append(take_turns(workers, repeats, say))
    rows = {}
    for row, columns in configs.items():
        speeds = [[steps_per_second(each, columns[i]) for each in by_task[i][row]] for i in tasks]
        rows[row] = {
            "steps_per_second": timing([sum(round_) / len(tasks) for round_ in zip(*speeds, strict=True)]).as_dict(),
            "by_task": {columns[i].task: timing(speeds[i]).as_dict() for i in tasks},
            "paper": paper_runtime()[name][row]["sps"],
        }
    return {"table": name, "measured": "whole iterations" if full else "slices", "rows": rows}
