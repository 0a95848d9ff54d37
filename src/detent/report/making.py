"""The whole report: every figure and table of a set of runs, and the directory that holds them."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from detent.errors import ConfigError
from detent.report.ablations import bins_figure, loss_swap_figure, width_figure, without_sweeps
from detent.report.comparing import (
    aggregate_table,
    improvement_figure,
    improvement_table,
    profile_figure,
    scores_figure,
    scores_table,
    speedup_table,
)
from detent.report.curves import aggregates_of, comparisons_of
from detent.report.drawing import draw
from detent.report.gradients import components_figure, components_table, metric_panels, variance_figures
from detent.report.latex import latex_tables
from detent.report.learning import INTRO, aggregate_figures, intro_figure, tasks_figures, wall_clock_figure
from detent.report.loading import Results
from detent.report.page import GENERATOR, page
from detent.report.printing import COLUMNS, chosen_figures
from detent.report.runtime import bins_table, variants_table
from detent.report.settings import hyperparameters_table, references_table
from detent.report.spec import Figure
from detent.report.style import colors
from detent.report.table import Table


def figures(results: Results, seed: int = 0) -> dict[str, Figure]:
    """Make the figures that these runs allow, by name; `seed` seeds the bootstrap."""
    comparisons = comparisons_of(results.runs)
    main = without_sweeps(comparisons)
    aggregates = aggregates_of(main)
    found = [
        intro_figure(main, seed),
        *aggregate_figures(aggregates, seed),
        *tasks_figures(main, seed),
        wall_clock_figure(main, seed),
        scores_figure(aggregates, main, seed),
        improvement_figure(improvement_table(aggregates, main, seed)),
        profile_figure(aggregates, seed),
        *variance_figures(main, seed),
        components_figure(components_table(main)),
        bins_figure(comparisons, seed),
        width_figure(comparisons, seed),
        loss_swap_figure(comparisons, seed),
    ]
    return {figure.name: figure for figure in found if figure is not None}


def metric_figure(results: Results, metric: str, seed: int = 0) -> Figure:
    """Make a figure of any column of metrics.jsonl against steps, on a logarithmic scale, mean over seeds."""
    panels = metric_panels(comparisons_of(results.runs), metric, metric, seed)
    if not panels:
        raise ConfigError(f"no run has a metric '{metric}'")
    return Figure(metric.replace("/", "-"), metric, "Mean over seeds. Logarithmic scale.", panels)


def tables(results: Results, seed: int = 0) -> dict[str, Table]:
    """Make the tables of the report, by name, without empty ones."""
    comparisons = comparisons_of(results.runs)
    main = without_sweeps(comparisons)
    aggregates = aggregates_of(main)
    declared = Counter((run.task, run.algo, run.group) for run in results.runs)
    found = {
        "aggregate": aggregate_table(aggregates, seed),
        "scores": scores_table(comparisons, declared, seed),
        "speedup": speedup_table(aggregates, comparisons, seed),
        "improvement": improvement_table(aggregates, comparisons, seed),
        "components": components_table(main),
        "runtime": variants_table(comparisons),
        "runtime-bins": bins_table(comparisons),
        "hyper-parameters": hyperparameters_table(main or comparisons),
        "references": references_table(comparisons),
        "runs": results.runs_table(),
        "evaluations": results.evaluations_table(),
    }
    return {name: table for name, table in found.items() if len(table)}


def write_report(
    results: Results, out: Path, seed: int = 0, names: Sequence[str] = (), width: float = COLUMNS["double"]
) -> Path:
    """Write index.html, figures and tables to `out`; return the page's path.

    Figures are PNG and SVG for the screen, and PDF and SVG for print, `width` inches wide; tables are CSV, Markdown and
    LaTeX. `names` selects figures; by default all are drawn. The old report stays until the new one is complete. A
    directory that is not a report is never replaced.
    """
    if out.exists() and not _is_report(out):
        raise ConfigError(f"{out} exists and is not a report; choose another --out")
    drawn, tabled = figures(results, seed), tables(results, seed)
    drawn = chosen_figures(drawn, names) if names else drawn
    palette = colors(dict.fromkeys(key for figure in drawn.values() for key in figure.keys))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"{out} cannot be created ({error.strerror}); choose another --out") from None
    try:
        for name, figure in drawn.items():
            files = [temporary / "figures" / f"{name}.{ending}" for ending in ("png", "svg")]
            draw(figure, *files, palette=palette)
            files = [temporary / "figures" / "print" / f"{name}.{ending}" for ending in ("pdf", "svg")]
            draw(figure, *files, palette=palette, width=width)
        (temporary / "tables").mkdir()
        for name, table in tabled.items():
            (temporary / "tables" / f"{name}.csv").write_text(table.to_csv())
            (temporary / "tables" / f"{name}.md").write_text(table.to_markdown())
        groups = {
            cell.group for comparison in without_sweeps(comparisons_of(results.runs)) for cell in comparison.cells
        }
        for name, text in latex_tables(tabled, groups).items():
            (temporary / "tables" / f"{name}.tex").write_text(text, encoding="utf-8")
        shown = drawn if names else _without_repeats(drawn)
        (temporary / "index.html").write_text(page(results, shown, tabled, palette), encoding="utf-8")
        temporary.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out / "index.html"


def _without_repeats(drawn: dict[str, Figure]) -> dict[str, Figure]:
    """Return the figures for a page: the intro only if it says more than the one aggregate does."""
    aggregates = [figure for figure in drawn.values() if figure.is_of("aggregate")]
    repeated = len(aggregates) == 1 and set(aggregates[0].keys) == set(INTRO)
    return {name: figure for name, figure in drawn.items() if not (repeated and name == "intro")}


def _is_report(out: Path) -> bool:
    if not out.is_dir():
        return False
    if not any(out.iterdir()):
        return True
    file = out / "index.html"
    return file.is_file() and GENERATOR in file.read_text(encoding="utf-8", errors="replace")[:2000]
