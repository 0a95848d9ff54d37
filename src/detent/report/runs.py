"""One run as a report sees it: its identity, how far it got, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detent.config.io import to_dict
from detent.config.presets import ALGORITHMS, BASELINES, configure, table
from detent.errors import ConfigError
from detent.paper.scores import normalized

Array = NDArray[np.float64]
Measure = Literal["TD3-normalized return", "success rate", "return"]

# Settings that determine how long, where or how often something is measured, not what is trained.
ASIDE = {"task", "variant", "algo", "preset", "steps", "seed", "threads", "device", "tensorboard"}
ASIDE |= {"env.backend", "env.processes", "update.diagnostics", "update.processes", "update.compile", "trpo.chunk"}
ASIDE |= {"update.engine", "log", "plugins"}
ASIDE_GROUPS = ("eval.", "checkpoint.", "log_options.")


@dataclass(frozen=True)
class Run:
    """A run directory, a declared run that has not started, or an external curve."""

    name: str
    task: str
    """As in the paper's figures: image tasks end in ` rgb`."""
    algo: str
    variant: str
    seed: int
    steps: int
    """Planned environment steps; 0 if unknown."""
    measure: Measure
    """What `scores` measure."""
    source: str = ""
    """Where the run comes from, for display."""
    status: str = "finished"
    """finished, running, stopped, failed, not started, or external."""
    reason: str = ""
    preset: str = "paper"
    settings: dict[str, Any] = field(default_factory=dict)
    """The configuration, flattened."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from preset and variant."""
    group: str = ""
    """Variant, with the settings that set it apart from other runs of the variant; runs of a group differ in seed."""
    at: Array = field(default_factory=lambda: np.empty(0))
    """Environment steps at each evaluation, [E]; the next three arrays belong to it."""
    scores: Array = field(default_factory=lambda: np.empty(0))
    returns: Array = field(default_factory=lambda: np.empty(0))
    hours: Array = field(default_factory=lambda: np.empty(0))
    """Hours of training up to each evaluation, evaluations not counted; NaN where unknown."""
    metrics: dict[str, Array] = field(default_factory=dict)
    """Columns of metrics.jsonl; NaN where a value is missing."""
    evaluations: tuple[dict[str, Any], ...] = ()
    """Rows of evals.jsonl."""

    @property
    def last(self) -> int:
        """Return the step of the last evaluation."""
        return int(self.at[-1]) if len(self.at) else 0

    @property
    def complete(self) -> bool:
        return len(self.at) > 0 and self.last >= self.steps

    @property
    def family(self) -> str | None:
        """Return the family of tasks whose scores can be averaged; None for a task whose return has no scale."""
        if self.measure == "return":
            return None
        name, image = self.task.removesuffix(" rgb"), self.task.endswith(" rgb")
        family = str(table("tasks").get(name, {}).get("family", self.measure))
        return f"{family} rgb" if image else family

    @property
    def on_policy(self) -> bool:
        """Return whether the algorithm is one of Detent's own; others are references in the figures of all of them."""
        return self.algo in ALGORITHMS and self.algo not in BASELINES

    def metric(self, name: str) -> tuple[Array, Array]:
        """Return steps and values of a metric, where it has a value."""
        if name not in self.metrics:
            return np.empty(0), np.empty(0)
        known = np.isfinite(self.metrics[name])
        return self.metrics["step"][known], self.metrics[name][known]


def measure_of(task: str, evaluations: tuple[dict[str, Any], ...]) -> Measure:
    """Return TD3-normalized if the paper normalizes the task, success rate if it is reported, else the return."""
    if normalized(task, 0.0) is not None:
        return "TD3-normalized return"
    return "success rate" if any(_success(row["stochastic"]) is not None for row in evaluations) else "return"


def score_of(measure: Measure, task: str, evaluation: Mapping[str, Any]) -> float:
    """Return the headline score of an evaluation: with sampled actions, as in the paper."""
    played = evaluation["stochastic"]
    if measure == "success rate":
        return float(_success(played) or 0.0)
    scaled = normalized(task, played["return"])
    return float(played["return"] if scaled is None else scaled)


def _success(played: Mapping[str, Any]) -> float | None:
    """Return the share of episodes that succeeded at any time; None if the environment does not report it."""
    share: float | None = played.get("success_once", played.get("success"))
    return share


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Turn rows into columns of numbers; a study has too many rows to keep each as a dict."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([_number(row.get(name)) for row in rows]) for name in names}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def training_hours(at: Array, metrics: Mapping[str, Array]) -> Array:
    """Return the hours of training up to the steps `at`, from the seconds of each iteration; NaN past the last row."""
    if "time/iteration" not in metrics or not np.isfinite(metrics["time/iteration"]).any():
        return np.full(len(at), np.nan)
    steps = np.append(0.0, metrics["step"])
    seconds = np.append(0.0, np.nancumsum(metrics["time/iteration"]))
    return np.interp(at, steps, seconds / 3600, right=np.nan)


def flat(nested: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and key != "kwargs":
            out |= flat(value, f"{where}{key}.")
        else:
            out[f"{where}{key}"] = value
    return out


@cache
def defaults(task: str, preset: str, variant: str, algo: str, scale: str, obs: str, backend: str) -> dict[str, Any]:
    """Return the flat settings of preset and variant for a run of this scale; empty if they are not Detent's own."""
    environment = {"env.obs": obs, "env.backend": backend}
    try:
        config = configure(task, preset=preset, variant=variant, algo=algo, scale=scale, overrides=environment)
        return flat(to_dict(config))
    except ConfigError:
        return {}


def departures(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the usual ones and change what is trained."""
    return {
        key: value
        for key, value in settings.items()
        if key not in ASIDE and not key.startswith(ASIDE_GROUPS) and usual.get(key) != value
    }


def compact(steps: int) -> str:
    """Format a number of steps in a few characters: 5M, 250k."""
    size, letter = (1e6, "M") if steps >= 1e6 else (1e3, "k") if steps >= 1e3 else (1.0, "")
    return f"{steps / size:.3g}{letter}"


def describe(key: str, value: Any) -> str:
    """Format a setting for a label."""
    short = {
        "actor.kind": "{} network",
        "actor.width": "width {}",
        "critic.head": "{} critic",
        "critic.kind": "{} critic network",
        "head.bins": "{} bins",
        "head.kind": "{} head",
        "preset": "{}",
    }
    return short.get(key, f"{key.rpartition('.')[2].replace('_', ' ')} {{}}").format(value)
