"""External learning curves, as CSV: one row per evaluation of one run.

    task,variant,seed,step,score,hours
    Humanoid-v4,tdmpc2,1,50000,0.03,0.4

`score` is on the report's scale: TD3-normalized return where the paper normalizes the task, else success rate. A
column `return` in its place is normalized here, or used as it is. `hours` is optional; `seconds` works as well.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from detent.errors import ConfigError
from detent.paper.scores import normalized
from detent.report.runs import Measure, Run

_NEEDED = ("task", "variant", "seed", "step")
_VALUES = ("score", "return")
_TIMES = {"hours": 1.0, "seconds": 3600.0}


def read_external(path: Path) -> list[Run]:
    """Read the runs of a file; anything wrong in a row is an error that names the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from None
    reader = csv.DictReader(lines)
    columns = list(reader.fieldnames or [])
    absent = [name for name in _NEEDED if name not in columns]
    values = [name for name in _VALUES if name in columns]
    if absent or len(values) != 1:
        lacks = ", ".join(absent) or "exactly one of score and return"
        raise ConfigError(f"{path} lacks {lacks}; its first line must name the columns {', '.join(_NEEDED)} and score")
    times = [name for name in _TIMES if name in columns]
    if len(times) == 2:
        raise ConfigError(f"{path} has hours and seconds; one of them is enough")
    points: dict[tuple[str, str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for row in reader:
        where = f"line {reader.line_num} of {path}"
        if None in row or None in row.values():
            raise ConfigError(f"{where} has {'more' if None in row else 'fewer'} columns than the first line")
        if not row["task"] or not row["variant"]:
            raise ConfigError(f"{where} names no task or no variant")
        step = _number(row, "step", where)
        if step < 0:
            raise ConfigError(f"{where}: step is {row['step']}; it must not be negative")
        hours = _number(row, times[0], where) / _TIMES[times[0]] if times else math.nan
        who = (row["task"], row["variant"], int(_number(row, "seed", where)))
        points[who].append((step, _number(row, values[0], where), hours))
    if not points:
        raise ConfigError(f"{path} has no rows below its first line")
    return [_run(path, *who, sorted(curve), values[0]) for who, curve in points.items()]


def _number(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} is '{row[name]}'; it must be a number")
    return value


def _run(path: Path, task: str, variant: str, seed: int, curve: list[tuple[float, float, float]], value: str) -> Run:
    at, given, hours = (np.array(column) for column in zip(*curve, strict=True))
    has_reference = normalized(task.removesuffix(" rgb"), 0.0) is not None
    measure: Measure = "TD3-normalized return" if has_reference else "return" if value == "return" else "success rate"
    scaled = [normalized(task, float(number)) for number in given] if value == "return" else []
    scores = np.array(scaled, float) if has_reference and value == "return" else given
    return Run(
        name=f"{variant}-{task}-{seed}",
        task=task,
        algo="external",
        variant=variant,
        seed=seed,
        steps=int(at[-1]),
        measure=measure,
        source=str(path),
        status="external",
        at=at,
        scores=scores,
        returns=given if value == "return" else np.full(len(at), np.nan),
        hours=hours,
    )
