"""Contenders take turns: each has its own process, and only one works at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from detent.bench.slices import slice_of, steps_per_second, whole_iteration
from detent.config import Config
from detent.config.io import to_dict
from detent.threads import WAIT_POLICY

Say = Callable[[str], None]
"""Reports progress."""

LEAST_SECONDS = 1.0
"""Minimum seconds that a contender works per turn."""


@dataclass(frozen=True)
class Source:
    """The `src` directory of another checkout, which may lack settings that this one has."""

    path: Path

    def known(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the other checkout has too."""
        code = "import dataclasses as d, json; from detent.config import Config; print(json.dumps(d.asdict(Config())))"
        environment = {**os.environ, "PYTHONPATH": str(self.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return _common(settings, json.loads(done.stdout))


def _common(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _common(value, others[key]) if isinstance(value, Mapping) and key != "kwargs" else value
        for key, value in settings.items()
        if key in others
    }


class Worker:
    """A contender in its own process (`detent.bench.worker`), running slices of `config`."""

    def __init__(self, kind: str, config: Config, full: bool = False, source: Source | None = None) -> None:
        """Start the process; `source` is the `src` directory of another checkout to measure instead of this one."""
        self.config = config
        self.sliced = config if full else slice_of(config)
        self._what = f"{kind} on {config.task}"
        # In a temporary directory, because MuJoCo leaves its log where it runs; the user's own tasks are still found.
        self._place = tempfile.TemporaryDirectory()
        self._words = Path(self._place.name) / "words"
        environment = {name: value for name, value in os.environ.items() if name not in WAIT_POLICY}
        paths = [*([str(source.path)] if source else []), *sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
        with self._words.open("w") as words:
            # Without our wait policy: each contender gets the thread settings of its own users.
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
        settings = to_dict(self.sliced)
        self._write(json.dumps({"kind": kind, "config": source.known(settings) if source else settings}))

    def ask(self) -> None:
        """Begin a turn."""
        self._write(str(self._slices))

    def answer(self) -> dict[str, float]:
        """Wait for the end of the turn; return the mean seconds of a slice by part."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            self._process.wait()
            last = (self._words.read_text().strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"measuring {self._what} failed: {last}")
        parts: dict[str, float] = json.loads(line)
        return parts

    def warm_up(self) -> None:
        """Run one slice that does not count, to find out how many make a turn."""
        self.ask()
        self._slices = max(1, round(LEAST_SECONDS / sum(self.answer().values())))

    def measure(self) -> dict[str, float]:
        """Take a turn; return the seconds of a whole iteration by part."""
        self.ask()
        return whole_iteration(self.answer(), self.sliced, self.config)

    def speed(self) -> float:
        return steps_per_second(self.measure(), self.config)

    def dismiss(self) -> None:
        """Close the process's input, so that it exits."""
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
        # A process that is gone is noticed, and its error reported, when it does not answer.
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).write(line + "\n")
            _pipe(self._process.stdin).flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextlib.contextmanager
def started(wanted: Mapping[str, tuple[str, Config]], full: bool) -> Iterator[dict[str, Worker]]:
    """Start workers by name and close them in the end; `wanted` gives their kinds and configurations."""
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


def take_turns(workers: Mapping[str, Worker], repeats: int, say: Say) -> dict[str, list[dict[str, float]]]:
    """Return the seconds of a whole iteration by part, per contender and round; every other round is reversed."""
    say(f"  warming up: {', '.join(workers)}")
    warm_up(workers)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    names = list(workers)
    for i in range(repeats):
        say(f"  round {i + 1} of {repeats}")
        for name in names if i % 2 == 0 else reversed(names):
            measured[name].append(workers[name].measure())
    return measured
