"""`detent report`: make a page from run directories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from detent.errors import ConfigError


@dataclass(frozen=True)
class Report:
    """Make a page of figures and tables from a study or any run directories: DIR/report/index.html."""

    directories: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR...")]
    """Studies, run directories, or directories that contain them."""
    out: Path | None = None
    """Directory to write; default: report in the first DIR."""
    external: UseAppendAction[tuple[Path, ...]] = ()
    """CSV file of external curves: columns task, variant, seed, step, score, optionally hours; may be repeated."""
    seed: int = 0
    """Seed of the bootstrap."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.report import load, write_report

        if not self.directories:
            raise ConfigError("name a study or run directories to report on")
        results = load(*self.directories, external=self.external)
        page = write_report(results, self.out or self.directories[0] / "report", self.seed)
        if self.json:
            told = {"page": str(page), "runs": len(results.runs), "complete": sum(run.complete for run in results.runs)}
            print(json.dumps(told | {"missing": results.missing, "problems": results.problems}))
            return 0
        for sentence in results.problems:
            print(f"problem: {sentence}")
        for sentence in results.missing:
            print(f"missing: {sentence}")
        print(f"report of {len(results.runs)} runs: {page}")
        return 0
