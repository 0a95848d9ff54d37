"""Imports go one way: a module sees only those above it in `LAYERS`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LAYERS = [
    "config",
    "config_io",
    "streams",
    "threads",
    "team",
    "presets",
    "spaces",
    "paper",
    "runlog",
    "report",
    "signals",
    "progress",
    "heads",
    "networks",
    "backprop",
    "normalize",
    "policy",
    "envs",
    "rollout",
    "collector",
    "advantages",
    "diagnostics",
    "flat_adam",
    "objectives",
    "prepare",
    "optimize",
    "trust_region",
    "checkpoint",
    "evaluate",
    "video",
    "trainer",
    "baselines",
    "session",
    "probe",
    "gradient_moments",
    "proposition",
    "study",
    "bench",
    "doctor",
    "__init__",
    "cli",
    "__main__",
]
FORBIDDEN = {
    "envs": {"heads", "networks", "normalize", "policy"},
    "advantages": {"envs", "runlog", "progress"},
    "objectives": {"envs", "runlog", "progress"},
}
"""What the order alone would allow: simulators know no networks, losses know neither simulators nor logging."""

PACKAGE = Path(__file__).parent.parent / "src" / "detent"
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_layers(tree: ast.AST) -> set[str]:
    """Layers that a module imports anywhere, also inside functions and for type checking."""
    layers: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            if node.module == "detent":
                names = [f"detent.{alias.name}" for alias in node.names]
            elif node.module is not None:
                names = [node.module]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "detent":
                first = rest.split(".")[0]
                layers.add(first if first in LAYERS else "__init__")
    return layers


def test_every_module_has_its_layer() -> None:
    unknown = sorted({layer_of(path) for path in FILES} - set(LAYERS))
    assert unknown == [], "add them to LAYERS at the place their imports allow"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_above(path: Path) -> None:
    layer = layer_of(path)
    imported = imported_layers(ast.parse(path.read_text())) - {layer}
    above = set(LAYERS[: LAYERS.index(layer)]) - FORBIDDEN.get(layer, set())
    assert sorted(imported - above) == []


def test_imports_inside_functions_and_of_the_package_itself_are_seen() -> None:
    code = """
import detent.envs.base
import torch
from detent import train
from detent.training import trainer
def f():
    from detent.cli import main
"""
    assert imported_layers(ast.parse(code)) == {"cli", "trainer", "__init__", "envs"}


@pytest.mark.parametrize(
    "module",
    [
        "detent",
        "detent.config",
        "detent.paper.scores",
        "detent.training.run_directory",
        "detent.config.presets",
        "detent.report",
        "detent.cli.report",
        "detent.study.plan",
        "detent.study.directory",
        "detent.study.engine",
        "detent.study.local",
        "detent.study.ray",
    ],
)
def test_needs_no_torch(module: str) -> None:
    code = f"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")

sys.meta_path.insert(0, NoTorch())
import {module}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
