"""The policy gradient during training: its variance, and its signal-to-noise ratio against the return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detent.report.curves import Comparison, algorithm_order, band, common_points, group_order, shared_tasks
from detent.report.learning import STEPS
from detent.report.runs import Array, Run
from detent.report.spec import Axis, Figure, Panel, Series
from detent.report.stats import percentile_over_training
from detent.report.table import Table

VARIANCES = {
    "grad_variance": (
        "gradient-variance",
        "Gradient variance",
        "trace of the covariance",
        "Trace of the covariance of the policy gradient over the minibatches of an iteration, mean over seeds.",
    ),
    "grad_variance_normalized": (
        "gradient-variance-normalized",
        "Gradient variance, normalized",
        "trace / |mean|²",
        "The trace divided by the squared norm of the mean gradient, so that networks of different sizes compare.",
    ),
    "grad_variance_authors": (
        "gradient-variance-authors",
        "Gradient variance, the authors' definition",
        "mean variance per parameter",
        "Mean over parameters of the variance over minibatches, as the paper's figure has it.",
    ),
}


def variance_figures(comparisons: Sequence[Comparison], seed: int) -> list[Figure]:
    """Make one figure per definition of the variance, on a logarithmic scale, with a panel per task."""
    figures = []
    for metric, (name, title, label, caption) in VARIANCES.items():
        panels = metric_panels(comparisons, metric, label, seed)
        if panels:
            figures.append(Figure(name, title, f"{caption} Logarithmic scale.", panels))
    return figures


def metric_panels(comparisons: Sequence[Comparison], metric: str, label: str, seed: int) -> tuple[Panel, ...]:
    """Make a panel of a metric against steps, on a logarithmic scale, for each task that has the metric."""
    panels = (_metric_panel(comparison, metric, label, seed) for comparison in comparisons)
    return tuple(panel for panel in panels if panel.series)


def _metric_panel(comparison: Comparison, metric: str, label: str, seed: int) -> Panel:
    series = []
    for cell in comparison.cells:
        lines = [line for line in (run.metric(metric) for run in cell.runs) if len(line[0])]
        if lines:
            points = common_points([x for x, _ in lines])
            curve = band(points, lines, seed)
            runs = curve.runs.astype(float)
            series.append(Series(cell.group, cell.group, points, curve.value, curve.low, curve.high, runs))
    return Panel(f"{comparison.task}, {comparison.algo.upper()}", STEPS, Axis(label, log=True), tuple(series))


def paper_snr(run: Run) -> tuple[Array, bool]:
    """Return the paper's signal-to-noise ratio of each iteration, and whether any had to be computed.

    It is |mean|^2 / trace over the minibatches of an epoch. Runs that do not log it as `grad_snr_paper` have
    `grad_snr`, from which its bias is removed: 1 / n with n minibatches per epoch, under TRPO per iteration.
    """
    rows = len(run.metrics.get("step", ()))
    logged, corrected = (run.metrics.get(name, np.full(rows, np.nan)) for name in ("grad_snr_paper", "grad_snr"))
    minibatches = run.settings.get("update.minibatches", np.nan)
    ratios = np.where(np.isfinite(logged), logged, corrected + 1 / minibatches)
    known = np.isfinite(ratios)
    return ratios[known], bool((known & ~np.isfinite(logged)).any())


@dataclass(frozen=True)
class _Component:
    snr: float
    corrected: float
    reached: float
    runs: int
    computed: int
    """Runs whose ratio was computed from `grad_snr`."""


def components_table(comparisons: Sequence[Comparison]) -> Table:
    """Make the table of mean SNR over training and 95th percentile of the score, by algorithm and group.

    Both are averaged over seeds, then over the tasks of a family that the groups share.
    """
    rows = []
    found: dict[tuple[str, str], dict[str, dict[str, _Component]]] = {}
    for comparison in comparisons:
        family = comparison.runs[0].family
        if family is None:
            continue
        groups = found.setdefault((family, comparison.algo), {})
        for cell in comparison.cells:
            component = _component(comparison.counted(cell))
            if component:
                groups.setdefault(cell.group, {})[comparison.task] = component
    for (family, algo), groups in sorted(found.items(), key=lambda item: (algorithm_order(item[0][1]), item[0])):
        tasks = shared_tasks({group: frozenset(of_task) for group, of_task in groups.items()}, least=1)
        complete = [group for group in sorted(groups, key=group_order) if tasks <= groups[group].keys()]
        for group in complete:
            parts = [groups[group][task] for task in sorted(tasks)]
            snr, reached = np.array([part.snr for part in parts]), np.array([part.reached for part in parts])
            corrected = np.array([part.corrected for part in parts])
            rows.append(
                {
                    "family": family,
                    "algo": algo,
                    "group": group,
                    "tasks": len(tasks),
                    "runs": sum(part.runs for part in parts),
                    "snr": float(snr.mean()),
                    "snr_std_over_tasks": _spread(snr),
                    "snr_corrected": float(corrected.mean()),
                    "runs_computed": sum(part.computed for part in parts),
                    "score_p95": float(reached.mean()),
                    "score_p95_std_over_tasks": _spread(reached),
                }
            )
    return Table.from_rows(rows, ("family", "algo", "group"))


def _component(runs: Sequence[Run]) -> _Component | None:
    measured = [(run, ratios, computed) for run in runs for ratios, computed in [paper_snr(run)] if len(ratios)]
    if not measured:
        return None
    return _Component(
        snr=float(np.mean([ratios.mean() for _, ratios, _ in measured])),
        corrected=float(np.mean([run.metric("grad_snr")[1].mean() for run, _, _ in measured])),
        reached=float(np.mean([percentile_over_training(run.scores) for run, _, _ in measured])),
        runs=len(measured),
        computed=sum(computed for _, _, computed in measured),
    )


def _spread(values: Array) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def components_figure(components: Table) -> Figure | None:
    """Make the figure of SNR bars beside score bars, with the correlation of the two across groups."""
    panels = []
    for family, algo in dict.fromkeys(zip(components["family"], components["algo"], strict=True)):
        table = components.where(family=family, algo=algo)
        if len(table) < 2:
            continue
        count = table["tasks"][0]
        what = f"{family}, mean over {count} tasks" if count > 1 else f"{family}, one task"
        related = ""
        if len(table) > 2:
            related = f", correlation {np.corrcoef(table.array('snr'), table.array('score_p95'))[0, 1]:.2f}"
        for column, title in (
            ("snr", f"{algo.upper()}: gradient SNR"),
            ("score_p95", f"{algo.upper()}: score{related}"),
        ):
            error = table.array(f"{column}_std_over_tasks")
            series = tuple(
                Series(
                    group, group, np.array([number]), np.array([value]), np.array([value - e]), np.array([value + e])
                )
                for number, (group, value, e) in enumerate(zip(table["group"], table.array(column), error, strict=True))
            )
            label = "signal-to-noise ratio" if column == "snr" else "95th percentile of the score"
            panels.append(Panel(f"{title} ({what})", Axis(""), Axis(label), series))
    if not panels:
        return None
    runs, computed = sum(components["runs"]), sum(components["runs_computed"])
    source = f" In {computed} of {runs} runs it is computed from grad_snr and n." if computed else ""
    caption = (
        "Signal-to-noise ratio of the policy gradient, mean over training, beside the 95th percentile of the score "
        "over training; mean over seeds, then tasks. Whiskers: one standard deviation over tasks. The ratio has the "
        "paper's form, |mean|² over the trace of the covariance across an epoch's n minibatches: noise alone gives "
        f"1/n.{source} The table also has it with that part taken out."
    )
    return Figure("components", "Gradient signal and return", caption, tuple(panels), "bars", columns=2)
