"""`detent draw`: the network of a run's policy as a diagram and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from detent.errors import ConfigError

if TYPE_CHECKING:
    from detent.models.architecture import Architecture, Group, Layer


@dataclass(frozen=True)
class Draw:
    """Draw the network of a run's policy for print, SVG and PDF, and list its layers, shapes and parameters."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    checkpoint: str = "best"
    """best, latest or a step number."""
    out: Path | None = None
    """Path of the diagram without its extension; default RUN/network."""
    width: str = "single"
    """Width of the diagram: single or double (columns of a paper), or a number with in, cm, mm or pt."""
    trust: bool = False
    """Import the modules that the run's files name, which runs their code."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent.models.architecture import describe
        from detent.models.checkpoints import load_policy
        from detent.report.network import draw_network
        from detent.report.printing import inches

        width = inches(self.width)
        policy, state, config = load_policy(self.run_directory, self.checkpoint, trust=self.trust)
        architecture = describe(policy)
        stem = self.out or self.run_directory / "network"
        paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "pdf")]
        try:
            draw_network(architecture, *paths, width=width, variant=config.variant)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written ({error.strerror}); choose another --out") from None
        if self.json:
            about = {"run": str(self.run_directory), "task": config.task, "variant": config.variant, "step": state.step}
            print(json.dumps(about | asdict(architecture) | {"files": list(map(str, paths))}))
        else:
            print_architecture(architecture, f"{config.task} · {config.variant} · step {state.step:,}")
            print("\n".join(map(str, paths)))
        return 0


def print_architecture(architecture: Architecture, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = Table(title=title, title_justify="left")
    for column in ("module", "kind", "shape", "parameters"):
        rows.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=True)
    for row in _modules(architecture):
        *outer, name = row.name.split(".")
        rows.add_row("  " * len(outer) + name, *_cells(row))
    console = Console()
    console.print(rows)
    sizes = ", ".join(f"{name} {size:,}" for name, size in architecture.parameters.items())
    console.print(f"parameters: {sizes}", highlight=False)


def _modules(architecture: Architecture) -> list[Layer | Group]:
    """Return modules and functions in the order in which they run, every module before what it consists of."""
    out: list[Layer | Group] = []
    for index, layer in enumerate(architecture.layers):
        out += [group for group in architecture.groups if group.first == index]
        out.append(layer)
    return out


def _cells(row: Layer | Group) -> tuple[str, str, str]:
    from detent.models.architecture import Layer

    parameters = f"{row.parameters:,}" if row.parameters else ""
    if not isinstance(row, Layer):
        return row.kind, "", parameters
    taken, given = ("×".join(map(str, shape)) for shape in (row.inputs, row.outputs))
    shape = given if taken == given or not taken else f"{taken} → {given or 1}"
    return f"{row.kind} {row.detail}".rstrip(), shape, parameters
