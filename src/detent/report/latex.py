"""Tables for print, in LaTeX with booktabs: `\\usepackage{booktabs}` and `\\input{scores-ppo}`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from detent.report.curves import group_order
from detent.report.table import Table

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}

Block = Sequence[Sequence[str]]
"""Rows between two rules."""


def latex_tables(tables: Mapping[str, Table], groups: Collection[str]) -> dict[str, str]:
    """Return LaTeX by file name: scores by algorithm, runtime, hyper-parameters and references, if there are any.

    `groups` are those that scores are tabled for; all are where an algorithm has none of them.
    """
    out: dict[str, str] = {}
    if "scores" in tables:
        for algo in dict.fromkeys(tables["scores"]["algo"]):
            out[f"scores-{algo}"] = _scores(tables, algo, groups)
    if "runtime" in tables:
        out["runtime"] = _runtime(tables["runtime"])
    if "hyper-parameters" in tables:
        out["hyper-parameters"] = _hyperparameters(tables["hyper-parameters"])
    if "references" in tables:
        rows = [
            [escaped(row["task"]), _signed(f"{row['random']:g}"), _signed(f"{row['td3']:g}")]
            for row in tables["references"].rows()
        ]
        caption = "Reference returns: a normalized score of 0 is a random policy, 1 is TD3."
        out["references"] = booktabs(["Task", "Random", "TD3"], [rows], caption, "references")
    return out


def booktabs(head: Sequence[str], blocks: Sequence[Block], caption: str, label: str) -> str:
    """Return a table whose first column is text; `head` and cells are LaTeX already."""

    def line(cells: Sequence[str]) -> str:
        return f"    {' & '.join(cells)} \\\\\n"

    body = "    \\midrule\n".join("".join(map(line, block)) for block in blocks if block)
    return (
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{caption}}}\n  \\label{{tab:{label}}}\n"
        f"  \\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}\n    \\toprule\n{line(head)}    \\midrule\n{body}"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def escaped(text: Any) -> str:
    """Return text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(character, character) for character in str(text))


def _scores(tables: Mapping[str, Table], algo: str, groups: Collection[str]) -> str:
    everything = list(tables["scores"].where(algo=algo).rows())
    rows = [row for row in everything if row["group"] in groups] or everything
    columns = sorted({row["group"] for row in rows}, key=group_order)
    by_task = _cells(rows, "task", "seeds")
    means: dict[str, dict[str, str]] = {}
    if "aggregate" in tables:
        found = tables["aggregate"].where(algo=algo).rows()
        named = [row | {"scope": f"Mean of {row['tasks']} {row['family']} tasks"} for row in found]
        means = _cells([row for row in named if row["group"] in columns], "scope", "runs")
    steps = sorted({row["step"] for row in rows})
    at = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    measures = " or ".join(dict.fromkeys(str(row["measure"]) for row in rows))
    caption = escaped(
        f"Scores ({measures}) under {algo.upper()} after {at} environment steps with sampled actions: mean [95% "
        "stratified bootstrap interval over seeds] (number of runs)."
    )
    head = ["Task", *map(escaped, columns)]
    blocks = [
        [[escaped(name), *(cells.get(group, "--") for group in columns)] for name, cells in block.items()]
        for block in (by_task, means)
    ]
    return booktabs(head, blocks, caption, f"scores-{algo}")


def _cells(rows: Sequence[Mapping[str, Any]], name: str, runs: str) -> dict[str, dict[str, str]]:
    """Return a cell of score, interval and number of runs, by the value of column `name` and group."""
    out: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = out.setdefault(str(row[name]), {})
        if row["mean"] is None:
            continue
        low, high = row["mean_low"], row["mean_high"]
        interval = f" [{_number(low)}, {_number(high)}]" if low is not None else ""
        cells[row["group"]] = f"{_number(row['mean'])}{interval} ({row[runs]})"
    return out


def _runtime(runtime: Table) -> str:
    blocks: dict[str, list[list[str]]] = {}
    for row in runtime.rows():
        cells = [row["sps"], row["hours"], row["paper_sps"], row["paper_hours_of_5M"]]
        who = escaped(f"{row['group']}, {row['algo'].upper()}")
        blocks.setdefault(row["task"], []).append([who, str(row["runs"]), *map(_speed, cells)])
    head = ["Actor", "Runs", "Steps/s", "Hours", "Steps/s (paper)", "Hours (paper)"]
    named = [[[f"\\textit{{{escaped(task)}}}", *[""] * 5], *rows] for task, rows in blocks.items()]
    caption = (
        "Training speed: median steps per second over iterations, mean over runs, and hours of training without "
        "evaluations. The paper's numbers are means over five Gymnasium tasks, 5M steps."
    )
    return booktabs(head, named, caption, "runtime")


def _hyperparameters(table: Table) -> str:
    _, *columns = table.columns
    sections: dict[str, list[list[str]]] = {}
    for row in table.rows():
        section = row["setting"].partition(".")[0] if "." in row["setting"] else ""
        setting = f"\\texttt{{{escaped(row['setting'])}}}"
        sections.setdefault(section, []).append([setting, *(escaped(row[name]) or "--" for name in columns)])
    head = ["Setting", *map(escaped, columns)]
    return booktabs(head, list(sections.values()), "Hyper-parameters.", "hyper-parameters")


def _number(value: float) -> str:
    return _signed(f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}")


def _signed(number: str) -> str:
    """Return a number with a minus sign, not a hyphen."""
    return number.replace("-", "$-$")


def _speed(value: float | None) -> str:
    return "--" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2f}"
