"""The command line. Each command is a dataclass whose fields are its flags and whose `run` returns the exit code.

Exit codes: 0 done, 2 wrong usage or configuration, 3 stopped on request with a checkpoint saved, 1 anything else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional, arg

from detent import __version__
from detent.config import Config, ConfigError, nearest, override, read_toml, to_dict
from detent.presets import PRESETS, configure, table
from detent.runlog import read_run_config
from detent.threads import prepare_threads

STOPPED = 3
Command = TypeVar("Command")
_NAMES = ("task", "preset", "variant", "algo")


@dataclass(frozen=True)
class Train:
    """Train a policy, or go on with a run: detent train HalfCheetah-v4 · detent train --resume RUN."""

    settings: Annotated[Config, arg(name="")] = field(default_factory=Config)
    out: Path | None = None
    """Run directory to create; default runs/<task>-<variant>-<algo>-s<seed>-<time>."""
    config: Path | None = None
    """TOML file of settings, for instance the config.toml of another run; flags go before it."""
    resume: Path | None = None
    """Run directory to go on with; --steps (and --schedule-steps) extend a finished one."""
    exact: bool = False
    """With --resume: go back to the last scheduled checkpoint, where resuming is exact to the bit."""

    def run(self) -> int:
        from detent import session
        from detent.progress import make_reporter

        reporter = make_reporter()
        if self.resume is not None:
            settings = self.settings
            result = session.resume(
                self.resume,
                steps=settings.steps,
                schedule_steps=settings.schedule_steps,
                exact=self.exact,
                reporter=reporter,
            )
        else:
            result = session.train(self.settings, out=self.out, reporter=reporter)
        if result.finished:
            print(f"finished: {result.path} (detent eval {result.path}, detent video {result.path})")
            return 0
        print(f"stopped at step {result.step:,} with a checkpoint; detent train --resume {result.path} goes on")
        return STOPPED


def parse_train(words: list[str]) -> Train:
    """Flags on top of the file on top of variant and preset; a first reading finds out which those are."""
    first = _parse(Train, words)
    if first.resume is not None:
        return _parse_resume(words, first)
    if first.exact:
        raise ConfigError("--exact goes with --resume")
    file = read_toml(first.config) if first.config else {}
    named = override(Config(), {key: file[key] for key in _NAMES if key in file})
    chosen = _parse(Train, words, Train(named)).settings if file else first.settings
    for key in _NAMES[1:]:
        if key in file and getattr(chosen, key) != file[key]:
            raise ConfigError(
                f"{first.config} has {key} '{file[key]}' and settings that go with it; leave --{key} out, or take "
                f"'{key}' and those settings out of the file"
            )
    names = {key: getattr(chosen, key) for key in _NAMES}
    layered = configure(**names, overrides={key: value for key, value in file.items() if key not in _NAMES})
    return _parse(Train, words, Train(layered))


def _parse_resume(words: list[str], first: Train) -> Train:
    """A resumed run keeps its configuration; only its length may be changed."""
    assert first.resume is not None
    for flag, given in (("task", first.settings.task), ("--out", first.out), ("--config", first.config)):
        if given:
            raise ConfigError(f"--resume goes on with the run as it is; leave the {flag} out")
    before = read_run_config(first.resume)
    command = _parse(Train, words, Train(before))
    lengthened = dataclasses.replace(
        before, steps=command.settings.steps, schedule_steps=command.settings.schedule_steps
    )
    if command.settings != lengthened:
        changed = ", ".join(_changed(to_dict(lengthened), to_dict(command.settings)))
        raise ConfigError(
            f"--resume keeps the run's settings, only --steps and --schedule-steps can be given; changed: {changed}. "
            f"To go on with other settings, train a new run with --init-from {first.resume}"
        )
    return command


def _changed(was: dict[str, Any], now: dict[str, Any], where: str = "") -> Iterator[str]:
    """Dotted names of the settings that differ."""
    for key, value in was.items():
        if isinstance(value, dict) and key != "kwargs":
            yield from _changed(value, now[key], f"{where}{key}.")
        elif value != now[key]:
            yield f"{where}{key}"


@dataclass(frozen=True)
class Eval:
    """Play a run's policy and report mean, spread and a confidence interval of the return."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "best"
    """best, latest or a step number."""
    episodes: int = 100
    """Episodes, each way: by sampled and by most probable actions."""
    envs: int = 10
    """Environments that play them, each the same share."""
    seed: int = 12345
    """Seed of environments and sampling."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        import torch

        from detent.checkpoint import load_policy
        from detent.envs import make_envs
        from detent.evaluate import evaluate
        from detent.paper import paper_score

        for name in ("episodes", "envs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} is {getattr(self, name)}; it must be at least 1")
        if self.threads < 0:
            raise ConfigError(f"--threads is {self.threads}; it must not be negative (0: all cores)")
        threads = self.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        policy, state, config = load_policy(self.run_directory, self.checkpoint)
        envs = make_envs(config.task, config.env, min(self.envs, self.episodes), threads)
        report: dict[str, Any] = {
            "run": str(self.run_directory),
            "task": config.task,
            "variant": config.variant,
            "step": state.step,
        }
        try:
            for play in ("stochastic", "deterministic"):
                played = evaluate(policy, envs, self.episodes, self.seed, play == "deterministic")
                report[play] = played.summary(config.task)
        finally:
            envs.close()
        report["paper_score"] = paper_score(config.algo, config.task, config.variant, state.step)
        if self.json:
            print(json.dumps(report))
        else:
            print_evaluation(report)
        return 0


def print_evaluation(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = Table(title=f"{report['task']} · {report['variant']} · step {report['step']:,}", title_justify="left")
    for column in ("actions", "return", "std", "95% interval of the mean", "length", "score"):
        rows.add_column(column, justify="left" if column == "actions" else "right")
    for play, shown in (("stochastic", "sampled"), ("deterministic", "most probable")):
        result = report[play]
        low, high = result["ci95"]
        score = "-" if result["score"] is None else f"{result['score']:.3f}"
        rows.add_row(
            shown,
            f"{result['return']:.1f}",
            f"{result['std']:.1f}",
            f"[{low:.1f}, {high:.1f}]",
            f"{result['length']:.0f}",
            score,
        )
    console = Console()
    console.print(rows)
    console.print(f"{report['stochastic']['episodes']} episodes each way; score: 0 is random, 1 is TD3")
    if report["paper_score"] is not None:
        console.print(f"the paper's score at this step: {report['paper_score']:.3f}")


@dataclass(frozen=True)
class Video:
    """Film a run's policy: mp4 and gif in RUN/videos."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "best"
    """best, latest or a step number."""
    episodes: int = 1
    """Episodes in the film."""
    max_steps: int = 1000
    """Longest episode shown."""
    stochastic: bool = False
    """Sample actions instead of taking the most probable ones."""
    seed: int = 0
    """Seed of the environment."""
    out: Path | None = None
    """Path of the film without its ending; default RUN/videos/step-<step>."""

    def run(self) -> int:
        from detent.video import record_run

        paths = record_run(
            self.run_directory,
            checkpoint=self.checkpoint,
            stem=self.out,
            episodes=self.episodes,
            max_steps=self.max_steps,
            deterministic=not self.stochastic,
            seed=self.seed,
        )
        for path in paths:
            print(path)
        return 0


@dataclass(frozen=True)
class List:
    """Show what there is: tasks, variants or presets."""

    what: Positional[Literal["tasks", "variants", "presets"]]
    """Which table."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        entries = {
            name: _describe(self.what, name) for name in (PRESETS if self.what == "presets" else table(self.what))
        }
        if self.json:
            print(json.dumps(entries))
            return 0
        width = max(map(len, entries))
        for name, description in entries.items():
            print(f"{name:{width}}  {description}")
        if self.what == "tasks":
            print("and any other Gymnasium id with a Box action space, also package.module:EnvId-v0")
        return 0


def _describe(what: str, name: str) -> str:
    contents = table(name) if what == "presets" else table(what)[name]
    return str(contents["description"])


@dataclass(frozen=True)
class Doctor:
    """Check this machine: versions, cores, GPU, which simulators work, and what to install for those that do not."""

    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent import doctor

        return doctor.report(self.json)


COMMANDS: dict[str, type[Train | Eval | Video | List | Doctor]] = {
    "train": Train,
    "eval": Eval,
    "video": Video,
    "list": List,
    "doctor": Doctor,
}


def _parse(command: type[Command], words: Sequence[str], default: Command | None = None) -> Command:
    prog = f"detent {command.__name__.lower()}"
    if default is None:
        return tyro.cli(command, prog=prog, args=words)
    return tyro.cli(command, prog=prog, args=words, default=default)


def usage() -> str:
    lines = [f"detent {__version__}: on-policy reinforcement learning with discretized categorical actors", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  detent {name:8}{(command.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "detent COMMAND --help tells the flags of a command."])


def main(words: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    name, *rest = words
    if name not in COMMANDS:
        print(f"detent: there is no command '{name}'; {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    prepare_threads()
    try:
        command = parse_train(rest) if name == "train" else _parse(COMMANDS[name], rest)
        return command.run()
    except ConfigError as error:
        print(f"detent {name}: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        print(f"detent {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"detent {name}: interrupted", file=sys.stderr)
        return 1
