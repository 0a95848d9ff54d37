"""Print the benchmark's reports as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from detent.bench.slices import Timing

PARTS = ("simulate", "act", "prepare", "forward and backward", "optimizer", "diagnostics", "other")


def shown(measured: Mapping[str, Any], spec: str) -> str:
    return format(Timing(measured["median"], measured["low"], measured["high"], tuple(measured["rounds"])), spec)


def print_report(report: Mapping[str, Any]) -> None:
    console = Console()
    if "table" in report:
        print_table(report, console)
    for case in report.get("cases", ()):
        print_case(case, console)
    for case in report.get("under_load", ()):
        print_under_load(case, console)
    for case in report.get("engines", ()):
        print_engines(case, console)
    machine = report["machine"]
    console.print(f"{machine['cores']} cores, {machine['system']}; median (lowest to highest) of {report['repeats']}")


def _table(title: str, *columns: str) -> Table:
    rows = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        rows.add_column(column, justify="right" if i else "left")
    return rows


def _title(case: Mapping[str, Any]) -> str:
    return f"{case['task']} · {case['variant']} · {case['preset']} · {case['threads']} threads"


def how(case: Mapping[str, Any]) -> str:
    """Return how a case was measured, for under its table: composed numbers are not whole iterations."""
    if case["measured"] == "whole iterations":
        return "measured on whole iterations"
    size = case["slice"]
    return (
        f"composed of slices: {size['rollout_steps']} steps per environment, {size['epochs']} epochs of "
        f"{size['minibatches']} minibatches of full size (--full measures whole iterations)"
    )


def print_case(case: Mapping[str, Any], console: Console) -> None:
    rows = _table(_title(case), "", "steps per second", "ratio")
    speeds = case["steps_per_second"]
    rows.add_row("Detent", shown(speeds["detent"], ".0f"), "")
    if case["times_sb3"]:
        times = f"Detent is {shown(case['times_sb3'], '.2f')} times that"
        rows.add_row("Stable-Baselines3", shown(speeds["sb3"], ".0f"), times)
    share = f"Detent is {shown(case['share_of_limit'], '.2f')} of it"
    rows.add_row("the machine's limit", shown(speeds["limit"], ".0f"), share)
    if case["compiled_gain"]:
        gain = shown(case["compiled_gain"], ".2f") + " times Detent"
        rows.add_row("Detent, --update.compile", shown(speeds["compiled"], ".0f"), gain)
    console.print(rows)
    console.print("time: " + ", ".join(f"{part} {case['split'][part]:.1%}" for part in PARTS))
    console.print(f"diagnostics add {shown(case['diagnostics_cost'], '.1%')} to the rest")
    limit = case["limit"]
    rates = limit["gflops_per_second"]
    console.print(
        f"limit: {rates['update']:.0f} GFLOP/s in updates, {rates['act']:.0f} to act, simulator alone "
        f"{limit['simulator_steps_per_second']:.0f} steps per second"
    )
    if case["peak_memory_bytes"] is not None:
        processes = "1 process" if case["processes"] == 1 else f"{case['processes']} processes"
        console.print(f"peak memory: {case['peak_memory_bytes'] / 1e6:.0f} MB ({processes})")
    if case["note"]:
        console.print(case["note"])
    console.print(how(case) + "\n")


def print_under_load(case: Mapping[str, Any], console: Console) -> None:
    rows = _table(_title(case), "", "steps per second", "against quiet")
    speeds = case["steps_per_second"]
    rows.add_row("alone", shown(speeds["quiet"], ".0f"), "")
    rows.add_row(
        "beside a busy core", shown(speeds["beside a busy core"], ".0f"), shown(case["kept_under_load"], ".2f")
    )
    rows.add_row(
        f"{case['threads']} one-thread runs, summed",
        shown(speeds["side by side"], ".0f"),
        shown(case["side_by_side_gain"], ".2f"),
    )
    console.print(rows)
    console.print(how(case) + "\n")


def print_engines(case: Mapping[str, Any], console: Console) -> None:
    rows = _table(_title(case), "engine", "steps per second", "times autograd")
    for name, speed in case["steps_per_second"].items():
        rows.add_row(name, shown(speed, ".0f"), shown(case["times_autograd"][name], ".2f"))
    console.print(rows)
    console.print(how(case) + "\n")


def print_table(report: Mapping[str, Any], console: Console) -> None:
    found = report["rows"]
    tasks = list(next(iter(found.values()))["by_task"])
    where = tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    first = next(iter(found))
    rows = _table(
        f"{report['table']} · {where}", report["table"], "steps per second", "the paper's", f"ratio to {first}"
    )
    for name, row in found.items():
        relative = row["steps_per_second"]["median"] / found[first]["steps_per_second"]["median"]
        paper = row["paper"] / found[first]["paper"]
        rows.add_row(
            name, shown(row["steps_per_second"], ".0f"), f"{row['paper']:g}", f"{relative:.2f} (paper {paper:.2f})"
        )
    console.print(rows)
    console.print("the paper's machine has a GPU; its variants are means of five tasks, its bins are on Humanoid-v4")
    if report["measured"] == "slices":
        console.print("composed of slices (--full measures whole iterations)")
