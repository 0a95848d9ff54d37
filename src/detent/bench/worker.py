"""A contender in its own process, which runs slices of work on request and reports how long their parts took.

The first line it reads is JSON: the kind of contender and its configuration. Every further line is a number of slices;
each is answered by a line of JSON with the mean seconds of a slice by part. It exits when its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO

from detent.config import Config
from detent.config.io import override
from detent.threads import prepare_threads


class Requests:
    """Requests from the parent process, each for a number of slices."""

    def __init__(self, lines: IO[str], answers: IO[str]) -> None:
        self._lines, self._answers = lines, answers
        self._asked = self._done = 0
        self._sums: dict[str, float] = {}

    def wait(self) -> bool:
        """Wait for the next request; return False when there are no more."""
        line = self._lines.readline()
        self._asked, self._done, self._sums = int(line or 0), 0, {}
        return bool(line)

    def report(self, parts: Mapping[str, float]) -> bool:
        """Count one slice, and answer when the request is fulfilled; return whether another slice is wanted."""
        for name, seconds in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + seconds
        self._done += 1
        if self._done < self._asked:
            return True
        self._answers.write(json.dumps({name: total / self._done for name, total in self._sums.items()}) + "\n")
        self._answers.flush()
        return self.wait()


def serve(one_slice: Callable[[], Mapping[str, float]], requests: Requests) -> None:
    going_on = requests.wait()
    while going_on:
        going_on = requests.report(one_slice())


def main() -> None:
    # Only answers go to the parent; whatever libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    config = override(Config(), order["config"])
    requests = Requests(sys.stdin, answers)
    match order["kind"]:
        case "detent" | "memory":
            prepare_threads()
            from detent.bench.detent_runner import train_in_slices

            train_in_slices(config, requests, order["kind"] == "memory")
        case "sb3":
            from detent.bench.peers import StableBaselines

            serve(StableBaselines(config).one_slice, requests)
        case "limit":
            from detent.bench.limit import Limit

            serve(Limit(config).one_slice, requests)


if __name__ == "__main__":
    main()
