"""`detent bench`: how fast Detent trains here, compared with its peers and with the machine's limit."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from detent.config.presets import configure
from detent.errors import ConfigError
from detent.paper.scores import paper_runtime

if TYPE_CHECKING:
    from detent.config import Config

CASES = (
    ("HalfCheetah-v4", "mlp-c", "paper"),
    ("HalfCheetah-v4", "rn-d", "paper"),
    ("Humanoid-v4", "rn-d", "paper"),
    ("HalfCheetah-v4", "rn-d", "fast"),
)
PAPER_TASKS = ("Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Humanoid-v4", "Walker2d-v4")


@dataclass(frozen=True)
class Bench:
    """Measure training speed: Detent, Stable-Baselines3 on the same work, and the machine's limit."""

    task: str = ""
    """Only this task; default: four cases on HalfCheetah-v4 and Humanoid-v4."""
    variant: str = ""
    """Only this variant; rn-d if only a task or preset is given."""
    preset: str = ""
    """Only this preset; paper if only a task or variant is given."""
    threads: int = 0
    """CPU threads for every contender; 0: all cores."""
    repeats: int = 5
    """Rounds; each measures every contender, one after the other."""
    full: bool = False
    """Measure whole iterations instead of slices of them; much slower."""
    compile: bool = False
    """Measure Detent with --update.compile too; compiling takes some twenty seconds."""
    engines: bool = False
    """Instead: the accelerated engine against autograd, with one thread and with all."""
    under_load: bool = False
    """Instead: Detent beside another busy process, and several one-thread runs side by side."""
    table: Literal["bins", "variants"] | None = None
    """Instead: one of the paper's two runtime tables, for this machine."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        report = self.measure()
        if self.json:
            print(json.dumps(report))
        else:
            from detent.bench.show import print_report

            print_report(report)
        return 0

    def measure(self) -> dict[str, Any]:
        from detent.bench import cases
        from detent.training import run

        if self.repeats < 1:
            raise ConfigError(f"--repeats is {self.repeats}; it must be at least 1")
        if self.threads < 0:
            raise ConfigError(f"--threads is {self.threads}; it must not be negative (0: all cores)")
        chosen = [
            f"--{name.replace('_', '-')}"
            for name in ("table", "engines", "under_load", "compile")
            if getattr(self, name)
        ]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)} are different measurements; leave all but one out")
        report: dict[str, Any] = {"machine": run.hardware(), "repeats": self.repeats}
        if self.table:
            return report | cases.run_table(self.table, self.rows(self.table), self.repeats, self.full, say)
        if self.compile:
            # If compiling is impossible, fail before anything is measured.
            for case in self.cases():
                self.config(*case, {"update.compile": True})
        configs = [self.config(*case) for case in self.cases()]
        kind = "under_load" if self.under_load else "engines" if self.engines else "cases"
        report[kind] = found = []
        for i, config in enumerate(configs):
            say(f"case {i + 1} of {len(configs)}: {config.variant} on {config.task}, {config.preset}")
            if self.under_load:
                found.append(cases.run_under_load(config, self.repeats, self.full, say))
            elif self.engines:
                found.append(cases.run_engines(config, self.repeats, self.full, say))
            else:
                found.append(cases.run_case(config, self.repeats, self.full, say, self.compile))
        return report

    def cases(self) -> list[tuple[str, str, str]]:
        if self.task or self.variant or self.preset:
            return [(self.task or "HalfCheetah-v4", self.variant or "rn-d", self.preset or "paper")]
        return [CASES[1]] if self.under_load else list(CASES)

    def rows(self, name: str) -> dict[str, list[Config]]:
        """Return the configurations of a table's rows, one per task."""
        if self.variant:
            raise ConfigError(f"--table {name} has its own variants; leave --variant out")
        preset, rows = self.preset or "paper", paper_runtime()[name]
        if name == "bins":
            task = self.task or "Humanoid-v4"
            return {bins: [self.config(task, "rn-d", preset, {"head.bins": int(bins)})] for bins in rows}
        tasks = [self.task] if self.task else PAPER_TASKS
        return {variant: [self.config(task, variant, preset) for task in tasks] for variant in rows}

    def config(self, task: str, variant: str, preset: str, overrides: dict[str, Any] | None = None) -> Config:
        from detent.training import run

        # The peer and the limit are measured on the CPU, so Detent is too.
        settings = {"threads": self.threads, "device": "cpu", **(overrides or {})}
        return run.resolve(configure(task, preset=preset, variant=variant, overrides=settings))


def say(sentence: str) -> None:
    """Print progress to stderr, apart from the report."""
    print(sentence, file=sys.stderr, flush=True)
