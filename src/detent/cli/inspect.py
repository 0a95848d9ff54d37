"""Commands that evaluate a policy, record a video of it or measure its gradient, and check the paper's proposition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from detent.config import Readout

if TYPE_CHECKING:
    from detent.paper.proposition import Check


@dataclass(frozen=True)
class Eval:
    """Evaluate a run's policy with each readout: return with a confidence interval, success, smoothness."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "best"
    """best, latest or a step number."""
    episodes: int = 100
    """Episodes with each readout: sampled, most probable and expected actions."""
    envs: int = 10
    """Environments, each of which runs the same share of the episodes."""
    seed: int = 12345
    """Seed of environments and sampling."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    set_readout: Literal["auto", "sample", "mode", "mean"] | None = None
    """Readout for the checkpoint to remember, which `policy(observation)` uses; `auto`: the better of mode and mean."""
    trust: bool = False
    """Import the modules that the run's files name, which runs their code."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.training.evaluate import evaluate_run

        report = evaluate_run(
            self.run_directory,
            self.checkpoint,
            episodes=self.episodes,
            num_envs=self.envs,
            seed=self.seed,
            threads=self.threads,
            trust=self.trust,
            set_readout=self.set_readout,
        )
        if self.json:
            print(json.dumps(report))
        else:
            print_evaluation(report)
            if self.set_readout is not None:
                print(f"checkpoint {report['step']} remembers the readout {report['readout']}")
        return 0


def print_evaluation(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from detent.training.evaluate import ROW_KEYS
    from detent.training.progress import READOUT_WORDS

    rows = Table(title=f"{report['task']} · {report['variant']} · step {report['step']:,}", title_justify="left")
    success = "success_once" in report["stochastic"]
    last = ("success once", "at end") if success else ("score",)
    for column in ("actions", "return", "std", "95% interval", "length", "change", *last):
        rows.add_column(column, justify="left" if column == "actions" else "right")
    for key, shown in READOUT_WORDS.items():
        result = report[key]
        if result is None:
            rows.add_row(shown, "no end")
            continue
        low, high = result["ci95"]
        scores = (result["success_once"], result["success_at_end"]) if success else (result["score"],)
        rows.add_row(
            f"{shown} *" if key == ROW_KEYS[report["readout"]] else shown,
            f"{result['return']:.1f}",
            f"{result['std']:.1f}",
            f"[{low:.1f}, {high:.1f}]",
            f"{result['length']:.0f}",
            f"{result['action_change']:.3f}",
            *("-" if score is None else f"{score:.3f}" for score in scores),
        )
    console = Console()
    console.print(rows)
    meaning = "" if report["stochastic"]["score"] is None else "; score: 0 is random, 1 is TD3"
    console.print(f"{report['stochastic']['episodes']} episodes each; interval: of the mean return{meaning}")
    console.print("change: mean |change of action| per step over half its range")
    console.print("*: the readout that policy(observation) uses")
    if report["paper_score"] is not None:
        console.print(f"the paper's score at this step: {report['paper_score']:.3f}")


@dataclass(frozen=True)
class Video:
    """Record a video of a run's policy: mp4 and gif in RUN/videos."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "best"
    """best, latest or a step number."""
    episodes: int = 1
    """Episodes in the video."""
    max_steps: int = 1000
    """Steps after which an episode is cut."""
    readout: Readout | None = None
    """`sample`, `mode` (most probable actions) or `mean` (expected ones); default: what the checkpoint remembers."""
    seed: int = 0
    """Seed of the environment."""
    out: Path | None = None
    """Path of the video without its extension; default RUN/videos/step-<step>."""
    trust: bool = False
    """Import the modules that the run's files name, which runs their code."""

    def run(self) -> int:
        from detent.training.video import record_run

        paths = record_run(
            self.run_directory,
            checkpoint=self.checkpoint,
            stem=self.out,
            episodes=self.episodes,
            max_steps=self.max_steps,
            readout=self.readout,
            seed=self.seed,
            trust=self.trust,
        )
        for path in paths:
            print(path)
        return 0


@dataclass(frozen=True)
class Diagnose:
    """Measure the variance and signal-to-noise ratio of a run's policy gradient on fresh rollouts, parameters fixed."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "latest"
    """best, latest or a step number."""
    rollouts: int = 4
    """Rollouts to collect, each as large as in the run; with a multiple of 16, intervals are over whole rollouts."""
    seed: int = 0
    """Seed of environments, sampling and minibatches."""
    threads: int = 0
    """CPU threads; 0: as many as the run used."""
    trust: bool = False
    """Import the modules that the run's files name, which runs their code."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.analysis.gradient_probe import print_probe, probe_run

        report = probe_run(self.run_directory, self.checkpoint, self.rollouts, self.seed, self.threads, self.trust)
        if self.json:
            print(json.dumps(report))
        else:
            print_probe(report)
        return 0


@dataclass(frozen=True)
class Proposition:
    """Check the paper's proposition on gradient variance numerically, and plot variance against policy sharpness."""

    dimensions: int = 6
    """Action dimensions."""
    bins: int = 41
    """Bins per dimension of the categorical policy."""
    samples: int = 100_000
    """Actions sampled for each Monte Carlo mean."""
    seed: int = 1
    """Seed of all sampling."""
    out: Path = Path("proposition.png")
    """Image file to write."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.paper.proposition import check_all, draw

        checks = check_all(self.dimensions, self.bins, self.samples, self.seed)
        draw(self.out, self.bins, self.samples, self.seed)
        holds = all(check.ok for check in checks)
        if self.json:
            print(json.dumps({"ok": holds, "checks": [asdict(check) for check in checks], "picture": str(self.out)}))
        else:
            print_checks(checks)
            print("Every claim holds." if holds else "Some claims do not hold; see above.")
            print(f"picture: {self.out}")
        return 0 if holds else 1


def print_checks(checks: Sequence[Check]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = Table()
    for column in ("claim", "measured", "", "expected", "standard error", "holds"):
        rows.add_column(column, justify="left" if column in ("claim", "holds") else "right")
    for check in checks:
        error = f"{check.standard_error:.2g}" if check.standard_error else "-"
        numbers = f"{check.measured:.9g}", check.relation, f"{check.expected:.9g}"
        rows.add_row(check.name, *numbers, error, "yes" if check.ok else "NO")
    Console().print(rows)
