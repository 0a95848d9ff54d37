"""Runs side by side: curves on common steps, groups of runs, and the scores at the step where they are compared.

Runs are evaluated at different steps. A curve is interpolated linearly onto common steps (or hours), and has no value
before its first or after its last evaluation. The common steps are all steps at which any of the runs was evaluated, or
`MOST_POINTS` evenly spaced ones if there are more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detent.config.presets import table
from detent.report.runs import Array, Run
from detent.report.stats import Band, mean_curve

MOST_POINTS = 200
_PAPERS_ORDER = ("ppo", "trpo", "spo")


@dataclass(frozen=True)
class Cell:
    """The runs of one group on one task under one algorithm."""

    task: str
    algo: str
    group: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Comparison:
    """The cells compared on one task under one algorithm."""

    task: str
    algo: str
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for cell in self.cells for run in cell.runs)

    @property
    def step(self) -> int:
        """Return the step of comparison: the earliest end of a complete on-policy run, else the last step all have."""
        own = [run for run in self.runs if run.on_policy] or self.runs
        return min([run.last for run in own if run.complete] or [run.last for run in own])

    def counted(self, cell: Cell) -> tuple[Run, ...]:
        """Return the cell's runs that reached `step`; all runs if `on_policy` is false, since budgets differ."""
        return tuple(run for run in cell.runs if run.last >= self.step or not run.on_policy)

    def final(self, cell: Cell) -> Array:
        """Return scores at `step`, or at the end of a run that ends earlier."""
        return np.array([np.interp(self.step, run.at, run.scores) for run in self.counted(cell)])


def comparisons_of(runs: Iterable[Run]) -> list[Comparison]:
    """Make a comparison per task and on-policy algorithm; runs of other algorithms join each one of their task."""
    runs = [run for run in runs if len(run.at)]
    own = {(run.task, run.algo) for run in runs if run.on_policy}
    own |= {(run.task, run.algo) for run in runs if run.task not in {task for task, _ in own}}
    out = []
    for task, algo in sorted(own, key=lambda pair: (task_order(pair[0]), algorithm_order(pair[1]))):
        cells: dict[str, list[Run]] = defaultdict(list)
        measure = next(run.measure for run in runs if (run.task, run.algo) == (task, algo))
        for run in runs:
            if run.task == task and run.measure == measure and (run.algo == algo or not run.on_policy):
                cells[run.group].append(run)
        ordered = sorted(cells, key=group_order)
        out.append(Comparison(task, algo, tuple(Cell(task, algo, group, tuple(cells[group])) for group in ordered)))
    return out


def without(comparisons: Iterable[Comparison], groups: Collection[str]) -> list[Comparison]:
    """Return the comparisons without the cells of these groups; one that has no other cells is left out."""
    kept = [
        replace(comparison, cells=tuple(cell for cell in comparison.cells if cell.group not in groups))
        for comparison in comparisons
    ]
    return [comparison for comparison in kept if comparison.cells]


def task_order(task: str) -> tuple[bool, int, str]:
    """Return a sort key: tasks in the order of their table, others after them, image tasks last."""
    known = list(table("tasks"))
    name = task.removesuffix(" rgb")
    return task.endswith(" rgb"), known.index(name) if name in known else len(known), task


def algorithm_order(algo: str) -> tuple[int, str]:
    """Return a sort key: algorithms in the paper's order, others after them."""
    return _PAPERS_ORDER.index(algo) if algo in _PAPERS_ORDER else len(_PAPERS_ORDER), algo


def group_order(group: str) -> tuple[int, list[tuple[int, str]]]:
    """Return a sort key: variants in the order of their table, others after them; numbers in a label by size."""
    known = list(table("variants"))
    variant = group.partition(" · ")[0]
    words = [(int(word), "") if word.isdigit() else (-1, word) for word in group.split()]
    return known.index(variant) if variant in known else len(known), words


def common_points(axes: Sequence[Array]) -> Array:
    """Return the points on which curves over `axes` are compared."""
    union = np.unique(np.concatenate(axes))
    return union if len(union) <= MOST_POINTS else np.linspace(union[0], union[-1], MOST_POINTS)


def aligned(points: Array, curves: Iterable[tuple[Array, Array]]) -> Array:
    """Interpolate curves (x, y) at `points`, [n, P]; NaN outside a curve's own range."""
    return np.array([np.interp(points, x, y, left=np.nan, right=np.nan) for x, y in curves])


def steps_and_scores(run: Run) -> tuple[Array, Array]:
    return run.at, run.scores


def hours_and_scores(run: Run) -> tuple[Array, Array]:
    known = np.isfinite(run.hours)
    return run.hours[known], run.scores[known]


def band(points: Array, curves: Sequence[tuple[Array, Array]], seed: int) -> Band:
    """Return mean and interval over the runs of one cell."""
    return mean_curve([aligned(points, curves)], seed)


@dataclass(frozen=True)
class Aggregate:
    """Groups of one algorithm over the tasks of a family that they share."""

    family: str
    algo: str
    comparisons: tuple[Comparison, ...]
    groups: tuple[str, ...]
    left_out: tuple[str, ...]
    """Groups that lack one of the tasks."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(comparison.task for comparison in self.comparisons)

    def cells(self, group: str) -> list[Cell]:
        """Return the group's cell of each task."""
        return [next(cell for cell in comparison.cells if cell.group == group) for comparison in self.comparisons]

    def finals(self, group: str) -> list[Array]:
        """Return the group's scores at the step of comparison, by task."""
        return [comparison.final(cell) for comparison, cell in zip(self.comparisons, self.cells(group), strict=True)]

    def curves(self, group: str, points: Array) -> list[Array]:
        """Return the group's curves at `points`, by task."""
        return [aligned(points, map(steps_and_scores, cell.runs)) for cell in self.cells(group)]

    def points(self) -> Array:
        return common_points([run.at for comparison in self.comparisons for run in comparison.runs])

    def shared_range(self, groups: Sequence[str]) -> tuple[Array, dict[str, list[Array]]]:
        """Return points up to the step of comparison, and the curves, without gaps, of the runs that got that far.

        A group that has no such run on some task is left out.
        """
        end = min(comparison.step for comparison in self.comparisons)
        runs = {
            group: [[run for run in cell.runs if run.last >= end] for cell in self.cells(group)] for group in groups
        }
        runs = {group: by_task for group, by_task in runs.items() if all(by_task)}
        begin = max((run.at[0] for by_task in runs.values() for task in by_task for run in task), default=0.0)
        points = self.points()
        points = points[(points >= begin) & (points <= end)]
        return points, {
            group: [aligned(points, map(steps_and_scores, task)) for task in by_task] for group, by_task in runs.items()
        }


def shared_tasks(tasks: Mapping[str, frozenset[str]], least: int) -> frozenset[str]:
    """Choose the tasks of one of the groups, `least` or more, to maximize groups times tasks."""
    candidates = sorted({has for has in tasks.values() if len(has) >= least}, key=lambda has: (len(has), sorted(has)))
    return max(
        candidates,
        key=lambda some: (len(some) * sum(some <= has for has in tasks.values()), len(some)),
        default=frozenset(),
    )


def alone(comparison: Comparison) -> Aggregate:
    """Return one task as an aggregate, for what is computed both over tasks and for each task."""
    groups = tuple(cell.group for cell in comparison.cells if len(comparison.final(cell)))
    return Aggregate(comparison.task, comparison.algo, (comparison,), groups, ())


def aggregates_of(comparisons: Sequence[Comparison]) -> list[Aggregate]:
    """Make one aggregate per algorithm and family with at least two tasks.

    A group that lacks one of the `shared_tasks` cannot be compared with those that have them; it is listed as left out.
    """
    by_family: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        family = comparison.runs[0].family
        if family is not None:
            by_family[family, comparison.algo].append(comparison)
    out = []
    for (family, algo), members in sorted(by_family.items(), key=lambda item: (algorithm_order(item[0][1]), item[0])):
        tasks: dict[str, frozenset[str]] = {}
        for comparison in members:
            for cell in comparison.cells:
                if len(comparison.final(cell)):
                    tasks[cell.group] = tasks.get(cell.group, frozenset()) | {comparison.task}
        chosen = shared_tasks(tasks, least=2)
        if not chosen:
            continue
        groups = sorted((group for group, has in tasks.items() if chosen <= has), key=group_order)
        left_out = sorted(set(tasks) - set(groups), key=group_order)
        kept = tuple(comparison for comparison in members if comparison.task in chosen)
        out.append(Aggregate(family, algo, kept, tuple(groups), tuple(left_out)))
    return out
