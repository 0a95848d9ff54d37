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
    figures: str | None = None
    """Figures to draw, separated by commas: intro,tasks-ppo; tasks stands for those of all algorithms. Default: all."""
    groups: str | None = None
    """Groups to report on, separated by commas; a variant stands for all its groups. Default: all."""
    width: str = "double"
    """Width of figures for print: single or double (columns of a paper), or a number with in, cm, mm or pt."""
    seed: int = 0
    """Seed of the bootstrap."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.report import load, write_report
        from detent.report.printing import inches, only_groups

        if not self.directories:
            raise ConfigError("name a study or run directories to report on")
        width = inches(self.width)
        results = load(*self.directories, external=self.external)
        if self.groups is not None:
            results = only_groups(results, _listed(self.groups))
        out = self.out or self.directories[0] / "report"
        page = write_report(results, out, self.seed, _listed(self.figures or ""), width)
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


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
