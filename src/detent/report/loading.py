"""Load directories into runs and tidy tables. What is damaged or missing becomes a sentence; the rest is used."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from detent.config.io import current_settings, read_toml
from detent.errors import ConfigError, RunError
from detent.report.external import read_external
from detent.report.runs import (
    Run,
    columns_of,
    defaults,
    departures,
    describe,
    flat,
    measure_of,
    score_of,
    training_hours,
)
from detent.report.table import Table
from detent.training.run_directory import current_names, read_rows

_STUDY_KEYS = ("id", "path", "task", "variant", "algo", "seed", "steps")
_WHO = ("run", "task", "algo", "variant", "group", "seed")


@dataclass(frozen=True)
class Results:
    """Everything a report is made from."""

    title: str
    description: str
    cites: str
    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    """Damaged files and runs left out, one sentence each."""

    @property
    def scored(self) -> tuple[Run, ...]:
        """Return the runs with at least one evaluation."""
        return tuple(run for run in self.runs if len(run.at))

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what a complete report would have and this one lacks, one sentence each."""
        return tuple(sentence for run in self.runs if (sentence := _what_is_missing(run)))

    def runs_table(self) -> Table:
        """Return a table with one row per run."""
        rows = (
            {
                **_who(run),
                "status": run.status,
                "steps": run.last,
                "planned_steps": run.steps,
                "evaluations": len(run.at),
                "last_score": float(run.scores[-1]) if len(run.at) else None,
                "measure": run.measure,
                "hours": _last_known(run.hours),
                "settings": ", ".join(f"{key} = {value}" for key, value in run.overrides.items()),
                "source": run.source,
            }
            for run in self.runs
        )
        return Table.from_rows(rows, _WHO)

    def evaluations_table(self) -> Table:
        """Return a table of evaluations: `score` is what the report compares, the rest is as in evals.jsonl."""
        rows = []
        for run in self.runs:
            extra = run.evaluations or ({},) * len(run.at)
            for step, hours, score, row in zip(run.at, run.hours, run.scores, extra, strict=True):
                known = {"step": int(step), "hours": _known(hours), "score": float(score)}
                played = {
                    f"{play}_{key}": value
                    for play in ("stochastic", "deterministic")
                    for key, value in row.get(play, {}).items()
                    if key not in ("score", "ci95")
                }
                rows.append({**_who(run), "measure": run.measure, **known, **played})
        return Table.from_rows(rows, (*_WHO, "measure", "step", "hours", "score"))

    def metrics_table(self) -> Table:
        """Return a table with one row per iteration and every column of metrics.jsonl."""
        rows = (
            {**_who(run), **{name: _known(value) for name, value in zip(run.metrics, values, strict=True)}}
            for run in self.runs
            for values in zip(*run.metrics.values(), strict=True)
        )
        return Table.from_rows(rows, (*_WHO, "step"))


def load(*directories: Path | str, external: Sequence[Path | str] = ()) -> Results:
    """Read studies, run directories, or directories that contain them; `external` are CSV files of other curves."""
    problems: list[str] = []
    runs: list[Run] = []
    about: list[dict[str, Any]] = []
    seen: set[Path] = set()
    for directory in map(Path, directories):
        if not directory.is_dir():
            raise ConfigError(f"there is no directory {directory}")
        found = list(_find(directory))
        if not found:
            raise ConfigError(f"{directory} holds nothing to report: no study.json and no run directory in or below it")
        for place, study in found:
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if study is None:
                runs.extend(_read_run(place, None, problems.append))
                continue
            about.append(study)
            for entry in study["runs"]:
                seen.add((place / entry["path"]).resolve())
                runs.extend(_read_run(place / entry["path"], entry, problems.append))
    for file in external:
        runs.extend(read_external(Path(file)))
    runs = _without_copies(_grouped(runs), problems.append)
    named = [str(study.get("name") or "") for study in about]
    return Results(
        title=" + ".join(filter(None, named)) or ", ".join(Path(d).resolve().name for d in directories),
        description=" ".join(str(study.get("description") or "") for study in about).strip(),
        cites=_joined(study.get("cites") for study in about),
        runs=tuple(sorted(runs, key=lambda run: (run.task, run.algo, run.variant, run.group, run.seed))),
        problems=tuple(problems),
    )


def _find(directory: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield studies and runs in or below a directory, without searching inside either."""
    for place, below, files in os.walk(directory):
        if "study.json" in files:
            yield Path(place), _read_study(Path(place) / "study.json")
            below.clear()
        elif "config.toml" in files:
            yield Path(place), None
            below.clear()
        below.sort()


def _read_study(path: Path) -> dict[str, Any]:
    try:
        study = json.loads(path.read_text())
        entries = study["runs"]
        broken = next((entry for entry in entries if not all(key in entry for key in _STUDY_KEYS)), None)
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(f"{path} is not the description of a study: it must be JSON with a list 'runs'") from None
    if broken is not None:
        absent = ", ".join(key for key in _STUDY_KEYS if key not in broken)
        raise ConfigError(f"{path}: a run lacks {absent}")
    assert isinstance(study, dict)
    return study


def _read_run(path: Path, entry: dict[str, Any] | None, complain: Callable[[str], None]) -> Iterator[Run]:
    """Yield the run at `path`, if usable; a run declared by a study in `entry` may not have started."""
    settings: dict[str, Any] = {}
    if (path / "config.toml").exists():
        try:
            settings = current_settings(flat(read_toml(path / "config.toml")))
        except ConfigError as error:
            complain(f"{error}; the run is left out")
            return
    who = entry or settings
    if any(key not in who for key in ("task", "variant", "algo", "seed", "steps")):
        complain(f"{path / 'config.toml'} names no task, variant, algo, seed and steps; the run is left out")
        return
    info = _read_info(path, complain)
    task, variant, algo = str(who["task"]), str(who["variant"]), str(who["algo"])
    metrics = columns_of([current_names(row) for row in _rows(path / "metrics.jsonl", complain)])
    evaluations = _rows(path / "evals.jsonl", complain)
    measure = measure_of(task, evaluations)
    preset = str(settings.get("preset") or (entry or {}).get("preset", "paper"))
    changed = current_settings(flat(entry.get("overrides") or {})) if entry else settings
    at = np.array([row["step"] for row in evaluations], float)
    known = {"scale": "auto", "env.obs": "state", "env.backend": "auto", **changed, **settings}
    scale, image, backend = (str(known[key]) for key in ("scale", "env.obs", "env.backend"))
    yield Run(
        name=str(entry["id"]) if entry else path.resolve().name,
        task=f"{task} rgb" if image.startswith("rgb") else task,
        algo=algo,
        variant=variant,
        seed=int(who["seed"]),
        steps=int(settings.get("steps", who["steps"])),
        measure=measure,
        source=str(path),
        status=str(info.get("status") or ("not started" if not metrics and not evaluations else "unknown")),
        reason=str(info.get("exit_reason") or ""),
        preset=preset,
        settings=settings,
        overrides=departures(flat(changed), defaults(task, preset, variant, algo, scale, image, backend)),
        at=at,
        scores=np.array([score_of(measure, task, row) for row in evaluations]),
        returns=np.array([row["stochastic"]["return"] for row in evaluations], float),
        hours=training_hours(at, metrics),
        metrics=metrics,
        evaluations=evaluations,
    )


def _read_info(path: Path, complain: Callable[[str], None]) -> dict[str, Any]:
    try:
        info = json.loads((path / "run.json").read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        complain(f"{path / 'run.json'} cannot be read; the run's status is unknown")
        return {}
    return info if isinstance(info, dict) else {}


def _rows(path: Path, complain: Callable[[str], None]) -> tuple[dict[str, Any], ...]:
    """Return the usable rows of a `.jsonl` file, and complain about the others."""
    if not path.exists():
        return ()
    try:
        rows = read_rows(path)
        torn = not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    except (RunError, OSError, UnicodeDecodeError) as error:
        complain(f"{path} cannot be used, and its run is shown without it: {error}")
        return ()
    if torn:
        complain(f"the last line of {path} is cut off; the {len(rows)} rows before it are used")
    whole = tuple(row for row in rows if _usable(row, path.name == "evals.jsonl"))
    if len(whole) < len(rows):
        complain(f"{len(rows) - len(whole)} rows of {path} have no step or no return and are left out")
    return whole


def _usable(row: Any, evaluation: bool) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("step"), int | float):
        return False
    played = row.get("stochastic")
    return not evaluation or (isinstance(played, dict) and isinstance(played.get("return"), int | float))


def _grouped(runs: list[Run]) -> list[Run]:
    """Fill in the runs' `group`: the variant, and each setting in which runs of one task and variant differ."""

    def told(run: Run) -> dict[str, Any]:
        settings = {} if run.preset == "paper" else {"preset": run.preset}
        # A run that has not started has no scale yet, which does not make it different.
        scale = {"scale": run.settings["scale"]} if run.settings.get("scale", "auto") != "auto" else {}
        return settings | scale | run.overrides

    alike: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        alike[run.task, run.algo, run.variant].append(told(run))
    differs = {
        key
        for settings in alike.values()
        for key in set().union(*settings)
        if len({repr(one.get(key)) for one in settings if key != "scale" or key in one}) > 1
    }
    out = []
    for run in runs:
        words = [describe(key, value) for key, value in sorted(told(run).items()) if key in differs]
        out.append(replace(run, group=" · ".join([run.variant, *words])))
    return out


def _without_copies(runs: list[Run], complain: Callable[[str], None]) -> list[Run]:
    """Keep the longest of runs with the same settings and seed: a copy is not a second observation."""
    best: dict[tuple[str, str, str, int], Run] = {}
    for run in runs:
        key = (run.task, run.algo, run.group, run.seed)
        other = best.get(key)
        if other is None:
            best[key] = run
            continue
        kept, dropped = (run, other) if run.last > other.last else (other, run)
        best[key] = kept
        complain(f"{dropped.source} repeats {kept.source} (same settings, same seed); only the latter counts")
    return list(best.values())


def _what_is_missing(run: Run) -> str:
    who = f"{run.task}, {run.algo}, {run.group}, seed {run.seed}"
    if run.status == "not started":
        return f"{who}: not started"
    why = {"running": "running, or cut off", "failed": f"failed: {run.reason}"}.get(run.status, run.status)
    if not len(run.at):
        return f"{who}: no evaluations ({why})"
    return "" if run.complete else f"{who}: {run.last:,} of {run.steps:,} steps ({why})"


def _who(run: Run) -> dict[str, Any]:
    who = (run.name, run.task, run.algo, run.variant, run.group, run.seed)
    return dict(zip(_WHO, who, strict=True))


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _last_known(values: Any) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _joined(cites: Any) -> str:
    words: list[str] = []
    for cite in cites:
        words.extend(map(str, cite) if isinstance(cite, list) else [str(cite)] if cite else [])
    return "; ".join(dict.fromkeys(words))
