"""A logger: takes the rows of a run as they are written."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.config import Config


class CSVLogger:
    """Append step and return of every iteration to RUN/returns.csv."""

    @dataclass(frozen=True)
    class Options:
        columns: tuple[str, ...] = ("step", "return")
        """Which entries of a row."""

    def __init__(self, path: Path, config: Config, step: int, options: Options) -> None:
        self._file = (path / "returns.csv").open("a", newline="")
        self._writer, self._columns = csv.writer(self._file), options.columns

    def log(self, name: str, row: Mapping[str, Any]) -> None:
        if name == "metrics":
            self._writer.writerow([row.get(column) for column in self._columns])

    def close(self) -> None:
        self._file.close()
