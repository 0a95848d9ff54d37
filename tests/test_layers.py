"""Imports go one way: a module sees only its own room and those before it in `LAYERS`."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

LAYERS = [
    "errors",
    "seeding",
    "threads",
    "spec",
    "config",
    "registry",
    "paper.scores",
    "models",
    "envs",
    "rollouts",
    "algorithms",
    "acceleration",
    "training",
    "plugins",
    "analysis",
    "report",
    "paper",
    "baselines",
    "study",
    "bench",
    "doctor",
    "__init__",
    "cli",
    "__main__",
]
"""Rooms and files of the package root, lowest first; `paper.scores` is data that training compares with."""
FORBIDDEN = {
    "envs": {"models"},
    "algorithms": {"envs"},
}
"""What the order alone would allow: simulators know no networks, update rules no simulators."""
BY_NAME = {
    "registry": set[str](),
    "models": {"models"},
    "algorithms": {"algorithms"},
    "envs": {"envs"},
    "training": {"training", "acceleration", "baselines"},
    "study": {"cli"},
    "bench": {"bench"},
}
"""What is named in a string and imported or started later: registries name their own room, training chooses its engine
and baseline, a study starts the command line."""

PACKAGE = Path(__file__).parent.parent / "src" / "detent"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULE = re.compile(r"detent(\.[a-z0-9_]+)+(?=:[A-Z]|$)")


def layer_of_module(module: str) -> str:
    """Return the layer of `config.io` and the like, the parts after `detent.`."""
    if module in LAYERS:
        return module
    first = module.split(".")[0]
    return first if first in LAYERS else "__init__"


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return layer_of_module(".".join(part for part in parts if part != "__init__") or "__init__")


def imported_layers(tree: ast.AST) -> set[str]:
    """Return the layers that a module imports anywhere, also inside functions and for type checking."""
    layers: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            if node.module is not None and node.module.split(".")[0] == "detent":
                # `from detent.paper import scores` imports a module, `from detent.envs import Step` a name.
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "detent":
                layers.add(layer_of_module(rest))
                if layer_of_module(rest) == "paper" and rest.startswith("paper.scores"):
                    layers.remove("paper")
                    layers.add("paper.scores")
    return layers


def named_layers(tree: ast.AST) -> set[str]:
    """Return the layers that a module names in strings, to be imported or started by name."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    found = (MODULE.fullmatch(text.partition(":")[0]) for text in strings)
    modules = [match.group().partition(".")[2] for match in found if match]
    # `detent.heads` and the like name entry points.
    return {layer_of_module(module) for module in modules if layer_of_module(module) != "__init__"}


def test_every_module_has_its_layer() -> None:
    unknown = [path for path in FILES if layer_of(path) == "__init__" and path != PACKAGE / "__init__.py"]
    assert unknown == [], "add them to LAYERS at the place their imports allow"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    layer = layer_of(path)
    imported = imported_layers(ast.parse(path.read_text())) - {layer}
    lower = set(LAYERS[: LAYERS.index(layer)]) - FORBIDDEN.get(layer, set())
    assert sorted(imported - lower) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_is_started_by_name_is_known(path: Path) -> None:
    layer = layer_of(path)
    lower = set(LAYERS[: LAYERS.index(layer) + 1])
    assert sorted(named_layers(ast.parse(path.read_text())) - lower - BY_NAME.get(layer, set())) == []


def test_imports_of_modules_are_acyclic() -> None:
    """Also within a room; imports inside functions and for type checking do not run when a module is loaded."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES
    }
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        imported: set[str] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    imported.add(full if full in names else node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[name] = (imported & names) - {name}
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)


def test_imports_inside_functions_and_strings_are_seen() -> None:
    code = '''
"""A docstring may speak of detent.cli.train."""
import detent.envs.base
import torch
from detent import train
from detent.paper import scores
def f():
    from detent.cli import main
    start("detent.bench.worker", {"name": "detent.models.heads:Head"})
'''
    tree = ast.parse(code)
    assert imported_layers(tree) == {"cli", "__init__", "envs", "paper.scores"}
    assert named_layers(tree) == {"bench", "models"}


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name in {blocked!r} or name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    "module",
    [
        "detent",
        "detent.config",
        "detent.config.presets",
        "detent.registry",
        "detent.models.heads",
        "detent.paper.scores",
        "detent.training.run_directory",
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
    run(BLOCK.format(blocked=["torch"]) + f"import {module}")


@pytest.mark.parametrize("module", ["detent.config", "detent.config.presets", "detent.training.run"])
def test_needs_no_command_line_parser(module: str) -> None:
    run(BLOCK.format(blocked=["tyro"]) + f"import {module}")


def test_loading_a_policy_imports_neither_a_parser_nor_a_simulator_nor_training_code(tmp_path: Path) -> None:
    fixture = Path(__file__).parent / "fixtures" / "version-0.1.0" / "run-ppo"
    run(f"""
import sys
import numpy as np
import detent
policy = detent.load({str(fixture)!r})
assert policy(np.zeros(2, np.float32)).shape == (2,)
unwanted = {{"tyro", "gymnasium", "envpool", "mujoco", "rich", "matplotlib", "stable_baselines3"}} & set(sys.modules)
rooms = {{name for name in sys.modules if name.startswith("detent.")}}
unwanted |= {{name for name in rooms if name.split(".")[1] in (
    "envs", "rollouts", "algorithms", "acceleration", "training", "analysis", "report", "study", "cli")}}
assert not unwanted, sorted(unwanted)
""")


def test_training_works_without_the_room_of_accelerated_forms(tmp_path: Path) -> None:
    run(
        BLOCK.format(blocked=["detent.acceleration"])
        + f"""
import detent
config = detent.configure("detent.envs.scripted:Target-v0", overrides={{
    "steps": 512, "env.num_envs": 4, "rollout_steps": 64, "update.minibatches": 4, "update.epochs": 2, "actor.width": 8,
    "eval.episodes": 2}})
result = detent.train(config, out={str(tmp_path / "run")!r})
assert result.finished
assert 'engine = "autograd"' in open({str(tmp_path / "run" / "config.toml")!r}).read()
"""
    )
