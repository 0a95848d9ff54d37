"""A study file: tasks x variants x algorithms x seeds x swept settings, and the runs that follow from it.

    description = "one sentence"
    tasks = ["Ant-v4", "Hopper-v4"]
    variants = ["rn-d", "mlp-c"]
    seeds = [1, 2, 3]
    steps = 1_000_000
    settings = { update.epochs = 5 }
    sweep = { head.bins = [11, 41, 101] }

Several grids in one study are `[[grid]]` tables; keys above them apply to all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from detent.config import Config, validate
from detent.config.io import RENAMED, read_toml, to_dict
from detent.config.presets import BASELINES, MANISKILL_BACKENDS, check_names, configure, table
from detent.errors import ConfigError, nearest
from detent.training.plugins import register_plugins

_DEFAULTS: dict[str, Any] = {
    "preset": "paper",
    "tasks": [],
    "variants": [],
    "algos": ["ppo"],
    "seeds": [1],
    "settings": {},
    "sweep": {},
    "baseline": False,
}
_GRID_KEYS = (*_DEFAULTS, "steps")
_STUDY_KEYS = (*_GRID_KEYS, "description", "cites", "grid")
_AXES = ("tasks", "variants", "algos", "seeds")
RESERVED_KEYS = {"task": "tasks", "variant": "variants", "algo": "algos", "seed": "seeds"} | {
    name: name for name in ("preset", "steps")
}
HASH_EXCLUDED = ("tensorboard", "log", "checkpoint.keep")
"""Settings that do not affect a run's results, and so are not part of its id."""


@dataclass(frozen=True)
class Run:
    """One training of a study."""

    id: str
    config: Config
    overrides: dict[str, Any]
    """Settings of the study besides the axes, by dotted name: those of all runs, and this run's swept ones."""
    swept: dict[str, Any]
    """The swept ones alone; an id has them only in its hash, so that displays show them beside it."""
    baseline: bool
    """Whether the run is a reference line for a sweep, not a point of it."""

    def entry(self) -> dict[str, Any]:
        """Return the run as recorded in `study.json`."""
        config = self.config
        return {
            "id": self.id,
            "path": f"runs/{self.id}",
            "task": config.task,
            "variant": config.variant,
            "algo": config.algo,
            "preset": config.preset,
            "seed": config.seed,
            "steps": config.steps,
            "total_steps": config.total_steps,
            "threads": config.threads,
            "baseline": self.baseline,
            "overrides": self.overrides,
            "swept": self.swept,
        }


@dataclass(frozen=True)
class Study:
    name: str
    description: str
    cites: str
    grids: tuple[dict[str, Any], ...]
    """Complete: keys that a file may omit are filled in."""
    runs: tuple[Run, ...]
    """In the order they are started: every first seed before any second one."""

    def source(self) -> dict[str, Any]:
        """Return the study as the content of a complete file."""
        return {"description": self.description, "cites": self.cites, "grid": list(self.grids)}


def shipped() -> dict[str, str]:
    """Return names and descriptions of the studies that ship with Detent, without those for tests (`_name`)."""
    entries = (files("detent.config.presets") / "studies").iterdir()
    names = sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))
    return {name: str(table(f"studies/{name}")["description"]) for name in names if not name.startswith("_")}


def load_study(study: str) -> Study:
    """Load a study from a TOML file, or the shipped one of that name."""
    if study.endswith(".toml"):
        return make_study(Path(study).stem, read_toml(Path(study)))
    if not (files("detent.config.presets") / "studies" / f"{study}.toml").is_file():
        raise ConfigError(
            f"there is no study '{study}'; {nearest(study, shipped())} (a study of your own is a file NAME.toml)"
        )
    return make_study(study, table(f"studies/{study}"))


def make_study(name: str, content: Mapping[str, Any]) -> Study:
    """Check the content of a study and lay out its runs."""
    try:
        _require_keys(content, _STUDY_KEYS)
        grids = content.get("grid", [{}])
        if not isinstance(grids, list) or not grids or not all(isinstance(grid, Mapping) for grid in grids):
            raise ConfigError("'grid' must be tables: [[grid]]")
        shared = {key: content[key] for key in _GRID_KEYS if key in content}
        complete = tuple(_complete(shared, grid) for grid in grids)
        _require_tasks(complete)
        by_id: dict[str, Run] = {}
        turns = [(turn, run) for grid in complete for turn, run in _runs(grid)]
        for _, run in sorted(turns, key=lambda item: item[0]):
            by_id.setdefault(run.id, run)
        texts = [_text(content, key) for key in ("description", "cites")]
    except ConfigError as error:
        raise ConfigError(f"study '{name}': {error}") from None
    return Study(name, texts[0], texts[1], complete, tuple(by_id.values()))


def run_id(config: Config) -> str:
    """Return a readable name with a hash of everything that affects the result.

    Only what differs from the default configuration is hashed, so that a setting added by a later version leaves the
    ids of existing runs alone. Threads count: they change bits. Device and simulator count as requested (`auto`), so
    that a study can be finished on another machine.
    """
    usual = flat(to_dict(Config()))
    # Renamed settings are hashed under their original names.
    first_names = {new: old for old, new in RENAMED.items()}
    changed = {
        first_names.get(key, key): value
        for key, value in flat(to_dict(config)).items()
        if value != usual.get(key) and key not in HASH_EXCLUDED and not key.startswith("log_options.")
    }
    text = json.dumps({key: changed[key] for key in sorted(changed)})
    task = config.task.rpartition(":")[2].replace("/", "-").lower()
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{task}-{config.variant}-{config.algo}-s{config.seed}-{digest}"


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _complete(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grid with all keys filled in and the types of its values checked."""
    _require_keys(own, _GRID_KEYS)
    grid = {**_DEFAULTS, **shared, **own}
    for key in ("settings", "sweep"):
        for part in (shared, own):
            if not isinstance(part.get(key, {}), Mapping):
                raise ConfigError(f"'{key}' must be a table; found {part[key]!r}")
    grid["settings"] = flat(shared.get("settings", {})) | flat(own.get("settings", {}))
    grid["sweep"] = flat(own.get("sweep", shared.get("sweep", {})))
    kinds: dict[str, type] = {"tasks": str, "variants": str, "algos": str, "seeds": int}
    for axis in (*_AXES, *grid["sweep"]):
        values, kind = (grid[axis], kinds[axis]) if axis in kinds else (grid["sweep"][axis], object)
        if not isinstance(values, list) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
            what = {str: "a list of names", int: "a list of whole numbers"}.get(kind, "a list of values")
            raise ConfigError(f"'{axis}' must be {what}; found {values!r}")
        if not values:
            raise ConfigError(f"'{axis}' is empty; it needs at least one entry")
        twice = [value for index, value in enumerate(values) if value in values[:index]]
        if twice:
            raise ConfigError(f"'{axis}' names {twice[0]!r} twice")
    for key in (*grid["settings"], *grid["sweep"]):
        if key in RESERVED_KEYS:
            raise ConfigError(f"'{key}' cannot be set in a study; use '{RESERVED_KEYS[key]}'")
    for key, kind in (("preset", str), ("baseline", bool)):
        if not isinstance(grid[key], kind):
            raise ConfigError(f"'{key}' must be {'a name' if kind is str else 'true or false'}; found {grid[key]!r}")
    return grid


def _runs(grid: Mapping[str, Any]) -> Iterator[tuple[int, Run]]:
    """Yield a grid's runs, each with the index of its seed."""
    fixed = {"threads": 1, **grid["settings"]}
    if not fixed["threads"]:
        raise ConfigError("threads is 0 (all cores), which is not the same on every machine; give a number")
    if "steps" in grid:
        fixed["steps"] = grid["steps"]
    swept = [dict(zip(grid["sweep"], values, strict=True)) for values in itertools.product(*grid["sweep"].values())]
    axes = itertools.product(grid["tasks"], grid["variants"], grid["algos"], swept)
    cells = [(task, variant, variant if variant in BASELINES else algo, sweep) for task, variant, algo, sweep in axes]
    for turn, seed in enumerate(grid["seeds"]):
        for task, variant, algo, sweep in cells:
            config = configure(
                task,
                preset=grid["preset"],
                variant=variant,
                algo=algo,
                overrides={**fixed, **sweep, "seed": seed},
            )
            validate(config)
            check_names(config)
            register_plugins(config)
            overrides = {**grid["settings"], **sweep}
            yield turn, Run(run_id(config), config, overrides, sweep, grid["baseline"])


def _require_keys(content: Mapping[str, Any], valid: tuple[str, ...]) -> None:
    for key in content:
        if key not in valid:
            raise ConfigError(f"unknown key '{key}'; {nearest(key, valid)}")


def _require_tasks(grids: tuple[dict[str, Any], ...]) -> None:
    """Refuse tasks that no simulator has; one that is not in the presets is looked up in Gymnasium."""
    own = {"auto", "envpool", "gymnasium", *MANISKILL_BACKENDS}
    for task in dict.fromkeys(task for grid in grids if _backends(grid) <= own for task in grid["tasks"]):
        if task not in table("tasks"):
            from detent.envs.gymnasium import find_task

            try:
                find_task(task)
            except ConfigError as error:
                why = f": {error}" if ":" in task else f"; {nearest(task, table('tasks'))}, or another Gymnasium id"
                raise ConfigError(f"unknown task '{task}'{why}") from None


def _backends(grid: Mapping[str, Any]) -> set[str]:
    """Return the simulators of a grid; only a plug-in itself knows its tasks."""
    return {str(name) for name in grid["sweep"].get("env.backend", [grid["settings"].get("env.backend", "auto")])}


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' must be text; found {value!r}")
    return value
