"""A study file: tasks x variants x algorithms x seeds x swept settings, and the runs it adds up to.

    description = "one sentence"
    tasks = ["Ant-v4", "Hopper-v4"]
    variants = ["rn-d", "mlp-c"]
    seeds = [1, 2, 3]
    steps = 1_000_000
    settings = { update.epochs = 5 }
    sweep = { head.bins = [11, 41, 101] }

Several grids in one study are `[[grid]]` tables; what stands above them holds for all of them.
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
from detent.config.presets import ALGORITHMS, BASELINES, check_names, configure, table
from detent.errors import ConfigError, nearest

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
"""Settings that change nothing in a run's results, and so do not belong to its id."""


@dataclass(frozen=True)
class Run:
    """One training of a study."""

    id: str
    config: Config
    overrides: dict[str, Any]
    """What the study says beside the axes, by dotted name: settings for all, and this run's swept ones."""
    baseline: bool
    """A line to compare a sweep with, not a point of it."""

    def entry(self) -> dict[str, Any]:
        """What `study.json` says of it."""
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
        }


@dataclass(frozen=True)
class Study:
    name: str
    description: str
    cites: str
    grids: tuple[dict[str, Any], ...]
    """Complete: everything that a file may leave out is said."""
    runs: tuple[Run, ...]
    """In the order they are started: every first seed before any second one."""

    def source(self) -> dict[str, Any]:
        """The study as a file that says everything."""
        return {"description": self.description, "cites": self.cites, "grid": list(self.grids)}


def shipped() -> dict[str, str]:
    """Names and descriptions of the studies that come with Detent; those for tests, `_name`, are left out."""
    entries = (files("detent.config.presets") / "studies").iterdir()
    names = sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))
    return {name: str(table(f"studies/{name}")["description"]) for name in names if not name.startswith("_")}


def load_study(study: str) -> Study:
    """The study of a file, or the shipped one of that name."""
    if study.endswith(".toml"):
        return make_study(Path(study).stem, read_toml(Path(study)))
    if not (files("detent.config.presets") / "studies" / f"{study}.toml").is_file():
        raise ConfigError(
            f"there is no study '{study}'; {nearest(study, shipped())} (a study of your own is a file NAME.toml)"
        )
    return make_study(study, table(f"studies/{study}"))


def make_study(name: str, content: Mapping[str, Any]) -> Study:
    """Check everything that a study says and lay out its runs."""
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
    """A readable name and a hash of all that changes the result.

    Hashed is what differs from the default configuration, so that a setting which a later version adds leaves the ids
    of existing runs alone. Threads count: they change bits. Device and simulator count as asked for (`auto`), so that a
    study can be finished on another machine.
    """
    usual = flat(to_dict(Config()))
    # Settings count under the names they were first written with.
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
    """Nested tables as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _complete(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A grid that says everything, its values checked for kind."""
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
            raise ConfigError(f"'{key}' is no setting of a study's runs; it is said by '{RESERVED_KEYS[key]}'")
    for key, kind in (("preset", str), ("baseline", bool)):
        if not isinstance(grid[key], kind):
            raise ConfigError(f"'{key}' must be {'a name' if kind is str else 'true or false'}; found {grid[key]!r}")
    return grid


def _runs(grid: Mapping[str, Any]) -> Iterator[tuple[int, Run]]:
    """A grid's runs, each with the turn of its seed."""
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
            _require_plugins(config)
            overrides = {**grid["settings"], **sweep}
            yield turn, Run(run_id(config), config, overrides, grid["baseline"])


def _require_plugins(config: Config) -> None:
    """Refuse plug-ins that are not known; only they make a study import more than its configuration."""
    default = Config()
    sections = ("encoder", "actor", "head", "critic", "env")
    own = all(name in ("categorical", "gaussian", "loss-swap") for name in (config.head.kind,))
    own &= all(getattr(config, name).options == {} for name in sections) and config.critic.head == default.critic.head
    own &= {config.actor.kind, config.critic.kind} <= {"rn", "mlp"} and config.encoder.kind == default.encoder.kind
    if own and config.algo in ALGORITHMS and not (config.plugins or config.log or config.env.wrappers):
        return
    from detent.training.plugins import register_plugins

    register_plugins(config)


def _require_keys(content: Mapping[str, Any], valid: tuple[str, ...]) -> None:
    for key in content:
        if key not in valid:
            raise ConfigError(f"unknown key '{key}'; {nearest(key, valid)}")


def _require_tasks(grids: tuple[dict[str, Any], ...]) -> None:
    """Refuse names that no simulator has; one that is not in the presets is looked up in Gymnasium."""
    for task in dict.fromkeys(task for grid in grids for task in grid["tasks"]):
        if task not in table("tasks"):
            from detent.envs.gymnasium import find_task

            try:
                find_task(task)
            except ConfigError as error:
                why = f": {error}" if ":" in task else f"; {nearest(task, table('tasks'))}, or another Gymnasium id"
                raise ConfigError(f"unknown task '{task}'{why}") from None


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' must be text; found {value!r}")
    return value
