"""The RN-D paper's scores (arXiv 2601.23075), to stand beside a run's own."""

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
    """None where the paper's figure hides the curve."""


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
    """The paper's tables of training speed."""
    return tomllib.loads((files(__package__) / "paper_runtime.toml").read_text(encoding="utf-8"))


def paper_task(task: str, obs: str) -> str:
    """A task's name in the paper's scores, which has images with the state beside them under names of their own."""
    return {"state": task, "rgb+state": f"{task} rgb"}.get(obs, "")


def paper_score(algorithm: str, task: str, variant: str, steps: int) -> float | None:
    """The paper's score after `steps`, between the two table points around it.

    TD3-normalized return on Gymnasium tasks, success rate on ManiSkill. None where the paper shows no such curve,
    past its end, or where one of the two points is hidden.
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
    """The TD3-normalized score of an episode's return: 0 is a random policy, 1 is TD3; None for other tasks."""
    reference = table("tasks").get(task, {})
    if "td3_score" not in reference:
        return None
    random_score, td3_score = float(reference["random_score"]), float(reference["td3_score"])
    return (total_reward - random_score) / (td3_score - random_score)
