"""Slices of an iteration, and how their seconds add up to the steps per second of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from detent.config import Config

SLICE_STEPS = 128
"""Minimum steps per environment that a slice collects."""
SLICE_UPDATES = 32
"""Minimum minibatch updates in a slice."""
UPDATE_PARTS = ("forward and backward", "optimizer", "diagnostics", "update")
"""Parts of an iteration that repeat in every epoch (the little in them that happens once per iteration is counted as
often); the others happen once per transition."""

Seconds = Mapping[str, float]
"""Time by part of an iteration, or of a slice of one."""


def slice_of(config: Config) -> Config:
    """Return a smaller version of the work: fewer steps per rollout and fewer epochs, minibatches of the same size."""
    rows = config.batch_size // config.update.minibatches
    for minibatches in range(1, config.update.minibatches):
        steps, rest = divmod(minibatches * rows, config.env.num_envs)
        if rest == 0 and steps >= SLICE_STEPS:
            break
    else:
        minibatches, steps = config.update.minibatches, config.rollout_steps
    epochs = min(config.update.epochs, -(-SLICE_UPDATES // minibatches))
    update = replace(config.update, minibatches=minibatches, epochs=epochs)
    return replace(config, rollout_steps=steps, update=update)


def whole_iteration(part: Seconds, sliced: Config, config: Config) -> dict[str, float]:
    """Return the seconds of one iteration of `config`, from the seconds of a slice of it."""
    rollouts = config.rollout_steps / sliced.rollout_steps
    epochs = config.update.epochs / sliced.update.epochs
    return {name: value * rollouts * (epochs if name in UPDATE_PARTS else 1.0) for name, value in part.items()}


def steps_per_second(iteration: Seconds, config: Config) -> float:
    return config.batch_size / sum(iteration.values())


@dataclass(frozen=True)
class Timing:
    """A number measured several times: its median, and the lowest and highest seen."""

    median: float
    low: float
    high: float
    rounds: tuple[float, ...]

    def __format__(self, spec: str) -> str:
        if len(self.rounds) == 1:
            return format(self.median, spec)
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def timing(rounds: Sequence[float]) -> Timing:
    return Timing(median(rounds), min(rounds), max(rounds), tuple(rounds))


def ratios(ours: Timing, theirs: Timing) -> Timing:
    """Return the ratios of values measured in the same rounds."""
    return timing([a / b for a, b in zip(ours.rounds, theirs.rounds, strict=True)])
