"""The RN-D paper's scores (arXiv 2601.23075), for comparison with a run's own."""

from __future__ import annotations

import csv
import tomllib
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from detent.config.presets import table


@dataclass(frozen=True)
class _Curve:
    steps: tuple[int, ...]
    scores: tuple[float | None, ...]
    """None where the curve is hidden in the paper's figure."""


@cache
def _curves() -> dict[tuple[str, str, str], _Curve]:
    lines = (files(__package__) / "paper_scores.csv").read_text(encoding="utf-8").splitlines()
    header, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    shares = [float(share) for share in header[4:]]
    return {
        (algorithm, task, variant): _Curve(
            tuple(round(share * int(budget)) for share in shares),
            tuple(float(score) if score else None for score in scores),
        )
        for algorithm, task, variant, budget, *scores in rows
    }


@cache
def paper_runtime() -> dict[str, Any]:
    """Return the paper's tables of training speed."""
    return tomllib.loads((files(__package__) / "paper_runtime.toml").read_text(encoding="utf-8"))


def paper_task(task: str, obs: str) -> str:
    """Return a task's name in the paper's scores, where tasks with images plus state have their own names."""
    return {"state": task, "rgb+state": f"{task} rgb"}.get(obs, "")


def paper_score(algorithm: str, task: str, variant: str, steps: int) -> float | None:
    """Return the paper's score after `steps`, interpolated between the two nearest table points.

    The score is the TD3-normalized return on Gymnasium tasks and the success rate on ManiSkill. It is None if the paper
    shows no such curve, if `steps` lies outside the curve, or if one of the two points is hidden.
    """
    curve = _curves().get((algorithm, task, variant))
    if curve is None or not curve.steps[0] <= steps <= curve.steps[-1]:
        return None
    right = bisect_left(curve.steps, steps)
    after = curve.scores[right]
    if curve.steps[right] == steps:
        return after
    before = curve.scores[right - 1]
    if before is None or after is None:
        return None
    start, end = curve.steps[right - 1], curve.steps[right]
    return before + (after - before) * (steps - start) / (end - start)


def normalized(task: str, total_reward: float) -> float | None:
    """Return the TD3-normalized score of an episode's return (0: random policy, 1: TD3); None for other tasks."""
    reference = table("tasks").get(task, {})
    if "td3_score" not in reference:
        return None
    random_score, td3_score = float(reference["random_score"]), float(reference["td3_score"])
    return (total_reward - random_score) / (td3_score - random_score)
