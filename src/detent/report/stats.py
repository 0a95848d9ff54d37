"""Statistics over few runs: interquartile mean, stratified bootstrap, probability of improvement, profiles, speed-up.

The methods are those of Agarwal et al., "Deep RL at the Edge of the Statistical Precipice" (2021). Scores are grouped
by task, one array of runs per task, because the bootstrap resamples runs within each task (stratified); the numbers of
runs may differ. An interval shows what other seeds would change, so there is none (NaN) if a task has a single run.
Every function draws from its own generator, seeded with `seed`: the same scores give the same interval whatever was
computed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = (2.5, 97.5)

Array = NDArray[np.float64]
ByTask = Sequence[Array]
"""One array of scores per task: [n] for single numbers, [n, P] for curves of P points."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, and the number of runs behind it."""

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Band:
    """A curve with its pointwise 95% interval, [P] each; `runs` counts those behind each point."""

    value: Array
    low: Array
    high: Array
    runs: NDArray[np.int64]


def interquartile_mean(values: Array) -> Array:
    """Return the mean over the last axis without the lowest and the highest quarter (rounded down)."""
    count = values.shape[-1]
    cut = count // 4
    middle: Array = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return middle


def iqm(scores: ByTask, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Return the interquartile mean over the runs of all tasks together; a task with more runs weighs more."""
    rng = np.random.default_rng(seed)
    drawn = [task[rng.integers(len(task), size=(resamples, len(task)))] for task in scores]
    value = float(interquartile_mean(np.concatenate(scores)))
    return _estimate(value, interquartile_mean(np.concatenate(drawn, axis=1)), scores)


def mean(scores: ByTask, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Return the mean over tasks of the mean over runs."""
    value = float(np.mean([task.mean() for task in scores]))
    return _estimate(value, _weights(scores, seed, resamples) @ np.concatenate(scores), scores)


def mean_curve(curves: ByTask, seed: int = 0, resamples: int = RESAMPLES) -> Band:
    """Return the mean over tasks of the mean over runs by point; `curves` are [n, P], NaN where a run has no value.

    Each point averages the runs that have a value there, and is NaN unless every task has one.
    """
    stacked = np.concatenate(curves)
    has = np.isfinite(stacked)
    ends = np.cumsum([len(task) for task in curves])[:-1]
    value, low, high = (np.full(stacked.shape[1], np.nan) for _ in range(3))
    # Points with the same runs behind them share one bootstrap.
    patterns, which = np.unique(has, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        present = [task[rows] for task, rows in zip(curves, np.split(pattern, ends), strict=True)]
        if not all(len(task) for task in present):
            continue
        points = np.flatnonzero(which.ravel() == number)
        here = [task[:, points] for task in present]
        value[points] = np.mean([task.mean(axis=0) for task in here], axis=0)
        if min(len(task) for task in here) > 1:
            drawn = _weights(here, seed, resamples) @ np.concatenate(here)
            low[points], high[points] = np.percentile(drawn, CONFIDENCE, axis=0)
    return Band(value, low, high, has.sum(axis=0))


def performance_profile(scores: ByTask, thresholds: Array, seed: int = 0, resamples: int = RESAMPLES) -> Band:
    """Return the share of runs whose score is above each threshold, [P]."""
    return mean_curve([(task[:, None] > thresholds).astype(float) for task in scores], seed, resamples)


def probability_of_improvement(x: ByTask, y: ByTask, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Return how likely a run of `x` beats a run of `y` on the same task (a tie counts half), averaged over tasks."""
    rng = np.random.default_rng(seed)
    value, drawn = 0.0, np.zeros(resamples)
    for ours, theirs in zip(x, y, strict=True):
        wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        value += float(wins.mean()) / len(x)
        left, right = _shares(rng, len(ours), resamples), _shares(rng, len(theirs), resamples)
        drawn += ((left @ wins) * right).sum(axis=1) / len(x)
    return _estimate(value, drawn, [*x, *y])


def steps_to_reach(steps: Array, curve: Array, score: Array) -> Array:
    """Return where `curve` [..., P] over `steps` [P] first reaches `score` [...], interpolated; infinity if never."""
    above = curve >= np.asarray(score)[..., None]
    after = above.argmax(axis=-1)
    before = np.maximum(after - 1, 0)
    left = np.take_along_axis(curve, before[..., None], axis=-1)[..., 0]
    right = np.take_along_axis(curve, after[..., None], axis=-1)[..., 0]
    rise = np.where(right > left, right - left, 1.0)
    share = np.where(after > 0, (score - left) / rise, 0.0)
    crossing = steps[before] + share * (steps[after] - steps[before])
    reached: Array = np.where(above.any(axis=-1), crossing, np.inf)
    return reached


def last_mean(curves: ByTask) -> float:
    """Return the mean over tasks of the mean over runs at the last point of curves `[n, P]`."""
    return float(_mean_of_tasks(curves)[-1])


def speedup(steps: Array, a: ByTask, b: ByTask, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Return how many times fewer steps `a` needs to reach the score `b` has at the last of `steps`; 0 if never.

    The curves are [n, P] per task on common `steps`; their means over runs and tasks are compared.
    """

    def ratio(curve: Array, score: Array) -> Array:
        # A curve that begins above the score needs one step, not none.
        times: Array = steps[-1] / np.maximum(steps_to_reach(steps, curve, score), 1.0)
        return times

    value = ratio(_mean_of_tasks(a), _mean_of_tasks(b)[-1])
    drawn_a = _weights(a, seed, resamples) @ np.concatenate(a)
    drawn_b = _weights(b, seed + 1, resamples) @ np.concatenate(b)[:, -1]
    return _estimate(float(value), ratio(drawn_a, drawn_b), [*a, *b])


def percentile_over_training(scores: Array, share: float = 95.0) -> float:
    """Return the percentile of one run's evaluation scores: what it reached, apart from its luckiest evaluations."""
    return float(np.percentile(scores, share))


def _estimate(value: float, drawn: Array, scores: ByTask) -> Estimate:
    runs = sum(len(task) for task in scores)
    if min(len(task) for task in scores) < 2:
        return Estimate(value, np.nan, np.nan, runs)
    low, high = np.percentile(drawn, CONFIDENCE)
    return Estimate(value, float(low), float(high), runs)


def _mean_of_tasks(curves: ByTask) -> Array:
    average: Array = np.mean([task.mean(axis=0) for task in curves], axis=0)
    return average


def _shares(rng: np.random.Generator, runs: int, resamples: int) -> Array:
    """Return how often each of `runs` runs is drawn in each resample, as shares [resamples, runs]."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), size=resamples) / runs


def _weights(scores: ByTask, seed: int, resamples: int) -> Array:
    """Return weights [resamples, all runs] that turn runs into resampled means over tasks of means over runs."""
    rng = np.random.default_rng(seed)
    return np.concatenate([_shares(rng, len(task), resamples) for task in scores], axis=1) / len(scores)
