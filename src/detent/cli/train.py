"""`detent train`: start a run from a preset, a file and flags, or resume an existing one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from detent.cli.parsing import given_settings, parse
from detent.config import Config
from detent.config.io import override, read_run_config, read_toml, to_dict
from detent.config.presets import BASELINES, configure, merged, require_used
from detent.errors import ConfigError

STOPPED = 3
TABLES = ("kwargs", "options", "head_options", "log_options")
"""Settings that are tables of the user's own keys."""
_NAMES = ("task", "preset", "variant", "algo", "scale")


@dataclass(frozen=True)
class Train:
    """Train a policy, or resume a run: detent train HalfCheetah-v4 · detent train --resume RUN.

    --help shows the flags that most runs need, --help-all every flag.
    """

    settings: Annotated[Config, arg(name="")] = field(default_factory=Config)
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Run directory to create; default runs/<task>-<variant>-<algo>-s<seed>-<time>."""
    config: Annotated[Path | None, arg(metavar="FILE")] = None
    """TOML file of settings, for instance the config.toml of another run; flags override it."""
    resume: Annotated[Path | None, arg(metavar="RUN")] = None
    """Run directory to resume; --steps (and --schedule-steps) extend a finished run."""
    exact: bool = False
    """With --resume: go back to the last scheduled checkpoint, from which resuming is bit-exact."""
    trust: bool = False
    """Import the modules that a run's files name (--resume, --init-from, --config of a run), which runs their code."""

    def run(self) -> int:
        from detent.training import run
        from detent.training.plugins import imports_of
        from detent.training.progress import progress

        if self.resume is not None:
            settings = self.settings
            result = run.resume(
                self.resume,
                steps=settings.steps,
                schedule_steps=settings.schedule_steps,
                exact=self.exact,
                callbacks=[progress()],
                trust=self.trust,
            )
        else:
            result = run.train(self.settings, out=self.out, callbacks=[progress()], trust=self.trust)
        config = read_run_config(result.path)
        if result.finished:
            baseline = self.settings.algo in BASELINES
            trust = " --trust" if imports_of(config, training=False) else ""
            hint = "" if baseline else f" (detent eval {result.path}{trust}, detent video {result.path}{trust})"
            print(f"finished: {result.path}{hint}")
            return 0
        print(
            f"stopped at step {result.step:,} with a checkpoint ({result.reason}); resume with: "
            f"detent train --resume {result.path}{' --trust' if imports_of(config) else ''}"
        )
        return STOPPED


def parse_train(words: list[str]) -> Train:
    """Parse flags, which override the file, which overrides variant and preset; a first pass finds those two."""
    first = parse(Train, words)
    if first.resume is not None:
        return _parse_resume(words, first)
    if first.exact:
        raise ConfigError("--exact requires --resume")
    file = read_toml(first.config) if first.config else {}
    named = override(Config(), {key: file[key] for key in (*_NAMES, "device", "env") if key in file})
    chosen = parse(Train, words, Train(named)).settings if file else first.settings
    for key in _NAMES[1:]:
        if key in file and getattr(chosen, key) != file[key]:
            raise ConfigError(
                f"{first.config} has {key} '{file[key]}' and settings that go with it; leave --{key} out, or take "
                f"'{key}' and those settings out of the file"
            )
    names = {key: getattr(chosen, key) for key in _NAMES}
    overrides = merged(
        {key: value for key, value in file.items() if key not in _NAMES},
        {"device": chosen.device, "env": {"obs": chosen.env.obs, "backend": chosen.env.backend}},
    )
    settings = configure(**names, overrides=overrides)
    if first.config and any((first.config.parent / name).exists() for name in ("run.json", "checkpoints", "lock")):
        from detent.training.plugins import require_trust

        # Written by a run, possibly someone else's, not by the user.
        require_trust(settings, first.config, first.trust)
    command = parse(Train, words, Train(settings))
    given = given_settings(Train, words)
    _require_once(given)
    require_used(command.settings, given)
    if "update.value_clip" in given:
        from detent.training.plugins import register_plugins
        from detent.training.run import require_clippable

        register_plugins(command.settings)
        require_clippable(command.settings)
    return command


def _require_once(given: list[str]) -> None:
    """Refuse a list or table that is given twice: only the last one would count."""
    config = to_dict(Config())
    for setting, times in Counter(given).items():
        section, _, name = setting.rpartition(".")
        value = (config[section] if section else config).get(name)
        if times > 1 and isinstance(value, list | dict):
            raise ConfigError(f"{setting} is given {times} times; give all its values at once")


def _parse_resume(words: list[str], first: Train) -> Train:
    """Parse the flags of a resumed run, which keeps its configuration; only its length may change."""
    assert first.resume is not None
    for flag, given in (("task", first.settings.task), ("--out", first.out), ("--config", first.config)):
        if given:
            raise ConfigError(f"--resume keeps the run's configuration; leave out {flag}")
    before = read_run_config(first.resume)
    command = parse(Train, words, Train(before))
    lengthened = dataclasses.replace(
        before, steps=command.settings.steps, schedule_steps=command.settings.schedule_steps
    )
    if command.settings != lengthened:
        changed = ", ".join(_changed(to_dict(lengthened), to_dict(command.settings)))
        raise ConfigError(
            f"--resume keeps the run's settings, only --steps and --schedule-steps can be given; changed: {changed}. "
            f"To continue with other settings, start a new run with --init-from {first.resume}"
        )
    return command


def _changed(was: dict[str, Any], now: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield the dotted names of the settings that differ."""
    for key, value in was.items():
        if isinstance(value, dict) and key not in TABLES:
            yield from _changed(value, now[key], f"{where}{key}.")
        elif value != now[key]:
            yield f"{where}{key}"
