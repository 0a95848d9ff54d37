"""One self-contained page: text, tables, the figures' data, and the style and script that draw them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from detent.report.ablations import without_sweeps
from detent.report.curves import aggregates_of, comparisons_of
from detent.report.elements import TAB_NAMES, details, figure_html, paragraph, table_html, tabs_html
from detent.report.loading import Results
from detent.report.spec import Figure, Series, thinned
from detent.report.stats import RESAMPLES
from detent.report.table import Table

GENERATOR = '<meta name="generator" content="detent report">'

_SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("aggregate", "All tasks together", ("intro", "aggregate")),
    ("tasks", "Every task", ("tasks",)),
    ("time", "Against wall-clock time", ("wall-clock",)),
    ("comparison", "Who beats whom", ("scores", "improvement", "profiles")),
    (
        "gradients",
        "The policy gradient",
        ("gradient-variance", "components"),
    ),
    ("ablations", "Ablations", ("bins", "width", "loss-swap")),
)
_TABLES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "aggregate": (
        ("aggregate", "Scores over tasks", True),
        ("speedup", "Steps to reach another group's final score", False),
    ),
    "tasks": (("scores", "Scores by task, and the seeds and steps they rest on", True),),
    "comparison": (("improvement", "Every pair", False),),
    "gradients": (("components", "Gradient signal and score", False),),
}
"""Tables by section: name, title, and whether initially open."""


def page(
    results: Results,
    figures: Mapping[str, Figure],
    tables: Mapping[str, Table],
    palette: Mapping[str, tuple[str, str]],
) -> str:
    """Return the page's HTML."""
    keys = list(palette)
    has_paper = any(s.style == "dashed" for f in figures.values() for p in f.panels for s in p.series)
    sections = [*_figure_sections(figures, tables), *_closing_sections(results, tables)]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>' for name, title, content in sections
    )
    shown = {"keys": keys, "figures": [_figure_data(figure) for figure in figures.values()]}
    data = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(results.title)} · Detent report</title>
<style>{_asset("page.css")}{_palette_css(palette)}</style>
</head>
<body>
<header>
<h1>{escape(results.title)}</h1>
{paragraph(results.description)}{paragraph(results.cites and f"After: {results.cites}")}
{_facts(results)}
{_callouts(results)}
<nav aria-label="Sections">{links}</nav>
</header>
{_legend(keys, has_paper) if figures else ""}
<main>{body}</main>
<footer>Made by <code>detent report</code> from the run files; nothing on this page is loaded from elsewhere.</footer>
<script type="application/json" id="data">{data}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


@cache
def _asset(name: str) -> str:
    return (files("detent.report") / name).read_text(encoding="utf-8")


def _palette_css(palette: Mapping[str, tuple[str, str]]) -> str:
    light = "".join(f"--s{number}:{pair[0]};" for number, pair in enumerate(palette.values()))
    dark = "".join(f"--s{number}:{pair[1]};" for number, pair in enumerate(palette.values()))
    return f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _facts(results: Results) -> str:
    """Return a line of numbers that summarizes what the page is based on."""
    scored = results.scored
    seeds: dict[tuple[str, str, str], int] = {}
    for run in scored:
        seeds[run.task, run.algo, run.group] = seeds.get((run.task, run.algo, run.group), 0) + 1
    complete = sum(run.complete for run in scored)
    steps = sum(run.last for run in scored)
    facts = [
        (f"{complete} of {len(results.runs)}", "runs complete"),
        (str(len({run.task for run in scored})), "tasks"),
        (str(len({run.group for run in scored})), "groups"),
        (_range(seeds.values()), "seeds per group and task"),
        (f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps:,}", "environment steps in all"),
    ]
    items = "".join(f"<li><b>{value}</b><span>{label}</span></li>" for value, label in facts)
    return f'<ul class="facts">{items}</ul>'


def _range(counts: Any) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _callouts(results: Results) -> str:
    """Return what a reader must know before reading on."""
    sentences = []
    comparisons = comparisons_of(results.runs)
    cells = [(comparison, cell) for comparison in comparisons for cell in comparison.cells]
    single = [cell for comparison, cell in cells if len(comparison.final(cell)) == 1]
    if single:
        which = "Every group has" if len(single) == len(cells) else "Some groups have"
        sentences.append(f"{which} one seed: no interval is shown for it, and a difference may be luck.")
    for aggregate in aggregates_of(without_sweeps(comparisons)):
        if aggregate.left_out:
            sentences.append(
                f"Not in the mean over {len(aggregate.tasks)} {aggregate.family} tasks ({aggregate.algo.upper()}), for "
                f"want of some of them: {', '.join(aggregate.left_out)}."
            )
    if not results.scored:
        sentences.append("There are no evaluations yet, so there is nothing to draw.")
    boxes = [
        "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        details("missing", "What is missing: {} not complete", results.missing),
        details("problems", "Problems with files: {}", results.problems),
    ]
    return "".join(f'<div class="callout">{box}</div>' for box in boxes if box)


def _legend(keys: Sequence[str], has_paper: bool) -> str:
    """Return toggles for the groups, which act on all figures."""
    buttons = [
        f'<button class="toggle" type="button" aria-pressed="true" data-key="{escape(key)}">'
        f'<i style="--c:var(--s{number})"></i>{escape(key)}</button>'
        for number, key in enumerate(keys)
    ]
    if has_paper:
        buttons.append(
            '<button class="toggle" type="button" aria-pressed="true" data-key="the paper">'
            '<i class="dashed"></i>the paper</button>'
        )
    joined = "".join(buttons)
    return f'<div class="legend" role="group" aria-label="Show or hide groups in all figures"><div>{joined}</div></div>'


def _figure_sections(figures: Mapping[str, Figure], tables: Mapping[str, Table]) -> list[tuple[str, str, str]]:
    out = []
    for name, title, members in _SECTIONS:
        present = [figure for member in members for figure in figures.values() if figure.is_of(member)]
        tabs = [figure for figure in present if figure.name in TAB_NAMES]
        content = tabs_html(tabs) if len(tabs) > 1 else "".join(map(figure_html, tabs))
        content += "".join(figure_html(figure, len(present) > 1) for figure in present if figure not in tabs)
        for table, heading, opened in _TABLES.get(name, ()):
            content += table_html(heading, tables[table], opened) if table in tables else ""
        if content:
            out.append((name, title, content))
    return out


def _closing_sections(results: Results, tables: Mapping[str, Table]) -> list[tuple[str, str, str]]:
    out = []
    speed = ""
    if "runtime" in tables:
        speed += paragraph(
            "Median steps per second over a run's iterations, mean over runs; hours of training without evaluations. "
            "The paper's numbers are means over its five Gymnasium tasks, 5M steps, on machines with GPUs."
        )
        speed += table_html("By variant", tables["runtime"], True)
    if "runtime-bins" in tables:
        speed += table_html("By number of bins", tables["runtime-bins"], True)
    if speed:
        out.append(("runtime", "Runtime", speed))
    settings = "".join(
        table_html(title, tables[name], False)
        for name, title in (
            ("hyper-parameters", "What was trained"),
            ("references", "Returns that scores 0 (random) and 1 (TD3) stand for"),
        )
        if name in tables
    )
    if settings:
        out.append(("settings", "Settings", settings))
    if "runs" in tables:
        out.append(
            ("runs", "Runs", table_html(f"All {len(tables['runs'])} runs", tables["runs"], len(tables["runs"]) <= 12))
        )
    out.append(("method", "How this was computed", _method()))
    links = "".join(
        f'<li>{name}: <a href="tables/{name}.csv">CSV</a>, <a href="tables/{name}.md">Markdown</a></li>'
        for name in tables
    )
    beside = paragraph(
        "In the same directories: figures/print has each figure as PDF and SVG at print size; tables has scores, "
        "runtime, hyper-parameters and references as LaTeX."
    )
    out.append(("files", "Files", f"<ul>{links}</ul>{beside}"))
    return out


def _method() -> str:
    points = (
        "A score is the mean of an evaluation's episodes with sampled actions: the TD3-normalized return (0 is a "
        "random policy, 1 is TD3) where the paper normalizes the task, the success rate where the environment reports "
        "one, the plain return elsewhere. Plain returns are never averaged over tasks.",
        "Curves are brought onto common steps by straight lines between a run's own evaluations, never beyond its "
        "first and last. Each point is over the runs that have it; the values under the pointer tell how many.",
        "Scores in tables are those at the step where the first complete run of the task ends; a run that has not got "
        "there is not counted in them.",
        "Intervals are 95% percentile bootstrap intervals over seeds, stratified by task, with "
        f"{RESAMPLES:,} resamples from a fixed seed. Where a task has a single run there is none.",
        "IQM: the interquartile mean, over the runs of all tasks together. p95: the 95th percentile of a run's "
        "evaluations over training, mean over runs.",
        "Speed-up: the final step divided by the step at which the mean curve of a first reaches the final score of b; "
        "a is the one of the two that ends higher.",
    )
    return '<ul class="method">' + "".join(f"<li>{escape(point)}</li>" for point in points) + "</ul>"


def _figure_data(figure: Figure) -> dict[str, Any]:
    panels = [
        {
            "title": panel.title,
            "x": asdict(panel.x),
            "y": asdict(panel.y),
            "series": [_series_data(series) for series in panel.series],
            "arrow": asdict(panel.arrow) if panel.arrow else None,
            "legend": panel.legend,
        }
        for panel in figure.panels
    ]
    return {"name": figure.name, "kind": figure.kind, "panels": panels}


def _series_data(series: Series) -> dict[str, Any]:
    numbers = {
        "x": thinned(series.x, 9),
        "y": thinned(series.y),
        "low": thinned(series.low),
        "high": thinned(series.high),
        "runs": thinned(series.runs),
    }
    return {"key": series.key, "label": series.label, "style": series.style, **numbers}
