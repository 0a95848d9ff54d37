"""The Python of the documents runs: every block of a page in order, in one program and one empty directory.

A block under a line that is just the name of a module, such as `my_envs.py`, is also there as that file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
MODULE = re.compile(r"^`(\w+\.py)`\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "docs/extending.md": [
        "there is no such run",
        "the class is defined below",
        "the class is defined below",
        "part of a class",
    ],
}
"""Blocks that are only read, by the reasons in the comments above them."""
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```python" in path.read_text()
]

RUNNER = """
import json, sys
namespace = {"__name__": "__main__"}
for page, line, code in json.load(sys.stdin):
    # Blank lines, so that a traceback names the page's own.
    exec(compile("\\n" * line + code, page, "exec"), namespace)
"""


def cheaper(code: str) -> str:
    """The same code with a tenth of the steps, small networks, and an easy task in place of MuJoCo's.

    Every number of thousands is taken for steps: a tenth of 20_000 is one iteration of the preset `fast`, and a tenth
    of 40_000 two.
    """
    code = re.sub(r"\b[\d_]+_000\b", lambda number: str(int(number[0]) // 10), code)
    code = code.replace("overrides={", 'overrides={"threads": 1, "actor.width": 8, "update.epochs": 1, ')
    return re.sub(r'(\.(?:configure|make)\()"[A-Z]\w+-v4"', r'\1"detent.envs.scripted:Target-v0"', code)


def test_what_is_made_cheaper() -> None:
    assert cheaper('detent.configure("Hopper-v4", preset="fast", overrides={"steps": 1_000_000, "ppo.clip": 0.1})') == (
        'detent.configure("detent.envs.scripted:Target-v0", preset="fast", overrides={"threads": 1, "actor.width": 8, '
        '"update.epochs": 1, "steps": 100000, "ppo.clip": 0.1})'
    )
    unchanged = 'table.where(task="Ant-v4"); detent.train(config, episodes=100); gymnasium.make("Pendulum-v1")'
    assert cheaper(unchanged) == unchanged


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    assert [block["reason"] for block in blocks if block["reason"]] == NOT_RUN.get(name, [])
    program = [
        (name, text.count("\n", 0, block.start("code")), cheaper(block["code"]))
        for block in blocks
        if not block["reason"]
    ]
    for file, code in MODULE.findall(text):
        (tmp_path / file).write_text(code)
    # Pages may show the committed results.
    (tmp_path / "results").symlink_to(ROOT / "results")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(program),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_reasons_are_of_pages_that_exist() -> None:
    assert {ROOT / name for name in NOT_RUN} <= set(PAGES)
