"""Tables for print, in LaTeX with booktabs: `\\usepackage{booktabs}` and `\\input{scores-ppo}`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

from detent.report.curves import group_order
from detent.report.table import Table

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}

_LINE, _SCORE = 84, 12
"""Characters of a line of a paper, and of a score with its interval below."""
_PAGE = 50
"""Lines of a table that fits a page."""
_CELL, _NAME = 24, 32
"""Characters of a setting's value, and of a name in the first column, beyond which it is broken into lines."""
_TASKS, _SETTINGS = 5, 3
"""Columns of tasks, and of settings' values, that fit beside such names."""

Item = TypeVar("Item")
Block = Sequence[Sequence[str]]
"""Rows between two rules."""
Cell = tuple[str, str]
"""What is written in a cell, and below it."""


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


def booktabs(head: Sequence[str], blocks: Sequence[Block], caption: str, label: str, columns: str = "c") -> str:
    """Return a table whose first column is text, the others aligned as `columns`; cells are LaTeX already."""

    def line(cells: Sequence[str]) -> str:
        return f"    {' & '.join(cells)} \\\\\n"

    body = "    \\midrule\n".join("".join(map(line, block)) for block in blocks if block)
    return (
        "\\begin{table}\n  \\centering\n  \\small\n"
        "  \\setlength{\\tabcolsep}{4pt}\n  \\setlength{\\abovetopsep}{3pt}\n"
        f"  \\caption{{{caption}}}\n  \\label{{tab:{label}}}\n"
        f"  \\begin{{tabular}}{{l{columns * (len(head) - 1)}}}\n    \\toprule\n{line(head)}    \\midrule\n{body}"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def escaped(text: Any) -> str:
    """Return text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(character, character) for character in str(text))


def _scores(tables: Mapping[str, Table], algo: str, groups: Collection[str]) -> str:
    everything = list(tables["scores"].where(algo=algo).rows())
    rows = [row for row in everything if row["group"] in groups] or everything
    names = sorted({row["group"] for row in rows}, key=group_order)
    by_task = _cells(rows, "task", "seeds")
    means: dict[str, dict[str, Cell]] = {}
    if "aggregate" in tables:
        found = tables["aggregate"].where(algo=algo).rows()
        named = [row | {"scope": f"Mean of {row['tasks']} {row['family']} tasks"} for row in found]
        means = _cells([row for row in named if row["group"] in names], "scope", "runs")
    steps = sorted({row["step"] for row in rows})
    at = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    measures = " or ".join(dict.fromkeys(str(row["measure"]) for row in rows))
    below = any(interval for cells in (by_task | means).values() for _, interval in cells.values())
    caption = escaped(
        f"Scores ({measures}) under {algo.upper()} after {at} environment steps with sampled actions: mean (number of "
        f"runs){', below it the 95% stratified bootstrap interval over seeds' if below else ''}."
    )
    if sum(map(_width, names)) <= _LINE:
        head = ["Task", *map(_stacked, names)]
        blocks = [
            [line for name, cells in block.items() for line in _lines(escaped(name), [cells.get(one) for one in names])]
            for block in (by_task, means)
        ]
        return booktabs(head, blocks, caption, f"scores-{algo}")
    # Groups with long names have a line each, and tasks a column.
    parts = []
    for scopes in _parts(list((by_task | means).items()), _TASKS):
        scored = [(name, [cells.get(name) for _, cells in scopes]) for name in names]
        lines = [line for name, cells in scored if any(cells) for line in _lines(_broken(name, _NAME, 0.3), cells)]
        parts.append((["Actor", *(_stacked(scope) for scope, _ in scopes)], [lines]))
    return _continued(parts, caption, f"scores-{algo}", "c")


def _width(name: str) -> int:
    """Return the characters of a column of scores with this name."""
    return 2 + max(_SCORE, *map(len, name.split(" · ")))


def _stacked(name: str) -> str:
    """Return a name for the head of a column: a group's settings, or a mean and what it is of, below each other."""
    parts = name.replace("Mean of ", "Mean of · ").split(" · ")
    stack = " \\\\ ".join(map(escaped, parts))
    return f"\\shortstack{{{stack}}}" if len(parts) > 1 else stack


def _lines(name: str, cells: Sequence[Cell | None]) -> list[list[str]]:
    """Return a line of scores, and a line of intervals below it if there are any."""
    lines = [[name, *("--" if cell is None else cell[0] for cell in cells)]]
    if any(cell is not None and cell[1] for cell in cells):
        lines.append(["", *(f"{{\\scriptsize {cell[1]}}}" if cell is not None and cell[1] else "" for cell in cells)])
    return lines


def _cells(rows: Sequence[Mapping[str, Any]], name: str, runs: str) -> dict[str, dict[str, Cell]]:
    """Return score with number of runs, and interval, by the value of column `name` and group."""
    out: dict[str, dict[str, Cell]] = {}
    for row in rows:
        cells = out.setdefault(str(row[name]), {})
        if row["mean"] is None:
            continue
        low, high = row["mean_low"], row["mean_high"]
        interval = "" if low is None else f"[{_number(low)}, {_number(high)}]"
        cells[row["group"]] = f"{_number(row['mean'])} ({row[runs]})", interval
    return out


def _runtime(runtime: Table) -> str:
    blocks: dict[str, list[list[str]]] = {}
    for row in runtime.rows():
        cells = [row["sps"], row["hours"], row["paper_sps"], row["paper_hours_of_5M"]]
        who = _broken(f"{row['group']}, {row['algo'].upper()}", _NAME, 0.35)
        blocks.setdefault(row["task"], []).append([who, str(row["runs"]), *map(_speed, cells)])
    head = ["Actor", "Runs", "Steps/s", "Hours", "Steps/s (paper)", "Hours (paper)"]
    named = [[[f"\\textit{{{escaped(task)}}}", *[""] * 5], *rows] for task, rows in blocks.items()]
    caption = (
        "Training speed: median steps per second over iterations, mean over runs, and hours of training without "
        "evaluations. The paper's numbers are means over five Gymnasium tasks, 5M steps."
    )
    return booktabs(head, named, caption, "runtime", "r")


def _hyperparameters(table: Table) -> str:
    """Return the table of settings, in as many parts as its columns and lines need."""
    _, *names = table.columns
    parts: list[tuple[list[str], list[Block]]] = []
    for columns in _parts(names, _SETTINGS):
        # Names of settings take up to four tenths of a line.
        share = 0.52 / len(columns)
        sections: dict[str, list[list[str]]] = {}
        heights: Counter[str] = Counter()
        for row in table.rows():
            values = [_value(row[name]) for name in columns]
            if not any(values):
                continue
            section = row["setting"].partition(".")[0] if "." in row["setting"] else ""
            cells = [f"\\texttt{{{escaped(row['setting'])}}}", *(_broken(value, _CELL, share) for value in values)]
            sections.setdefault(section, []).append(cells)
            heights[section] += max(1, *(ceil(len(value) / (share * _LINE)) for value in values))
        head = ["Setting", *map(escaped, columns)]
        height = _PAGE
        for section, block in sections.items():
            if height + heights[section] > _PAGE:
                parts.append((head, []))
                height = 0
            parts[-1][1].append(block)
            height += heights[section]
    return _continued(parts, "Hyper-parameters.", "hyper-parameters", "l")


def _parts(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Return items in parts of about the same size, each of `most` at most."""
    size = ceil(len(items) / ceil(len(items) / most))
    return [items[start : start + size] for start in range(0, len(items), size)]


def _continued(parts: Sequence[tuple[Sequence[str], Sequence[Block]]], caption: str, label: str, columns: str) -> str:
    """Return a table in parts, given by their heads and blocks."""
    return "".join(
        booktabs(head, blocks, f"{caption[:-1]} (continued).", f"{label}-{number}", columns)
        if number > 1
        else booktabs(head, blocks, caption, label, columns)
        for number, (head, blocks) in enumerate(parts, start=1)
    )


def _value(value: str) -> str:
    """Return a setting's value as one reads it: thousands separated, a plain decimal where it is short."""
    if value.isdigit():
        return f"{int(value):,}"
    if re.fullmatch(r"[\d.]+e-0\d", value):
        return f"{float(value):.10f}".rstrip("0")
    return value


def _broken(text: str, characters: int, share: float) -> str:
    """Return a cell's text; if it is longer than that, broken into lines of a share of the text's width."""
    if len(text) <= characters:
        return escaped(text) or "--"
    return f"\\parbox[t]{{{share:.2f}\\linewidth}}{{\\raggedright {escaped(text)}\\strut}}"


def _number(value: float) -> str:
    return _signed(f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}")


def _signed(number: str) -> str:
    """Return a number with a minus sign, not a hyphen."""
    return number.replace("-", "$-$")


def _speed(value: float | None) -> str:
    return "--" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2f}"
