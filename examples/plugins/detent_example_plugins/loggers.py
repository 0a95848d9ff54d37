"""A logger: a callback that takes the rows of a run as they are written."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

import detent


class CSVLogger(detent.Callback):
    """Append step and return of every iteration to RUN/returns.csv."""

    @dataclass(frozen=True)
    class Options:
        columns: tuple[str, ...] = ("step", "return")
        """Which entries of a row."""

    def __init__(self, options: Options) -> None:
        self._columns = options.columns

    def on_run_start(self, run: detent.RunContext) -> None:
        self._file = (run.path / "returns.csv").open("a", newline="")
        self._writer = csv.writer(self._file)

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        self._writer.writerow([row.get(column) for column in self._columns])

    def on_run_end(self, run: detent.RunContext, status: str) -> None:
        self._file.close()
