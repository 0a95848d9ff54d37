"""What the tests of studies share: small studies, and everything in a study's results but times."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from detent.config.presets import table


def write(path: Path, **changes: Any) -> Path:
    """A study file like the tiny one, with one seed."""
    path.write_text(tomli_w.dumps({**table("studies/_tiny"), "seeds": [1], **changes}))
    return path


def command(*words: object) -> list[str]:
    """`detent study ...`"""
    return [sys.executable, "-m", "detent", "study", *map(str, words)]


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Look until it has happened; a process that ends before is an error."""
    deadline = time.monotonic() + 120
    while not happened():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]


def results(directory: Path) -> dict[str, Any]:
    """Metrics and evaluations without times, and the hashes of all weights, by run."""
    out: dict[str, Any] = {}
    for run in sorted((directory / "runs").iterdir()):
        weights = sorted(run.glob("checkpoints/*/*.safetensors"))
        out[run.name] = {
            "metrics": rows(run / "metrics.jsonl"),
            "evals": rows(run / "evals.jsonl"),
            "weights": {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in weights},
        }
    return out


def info(directory: Path, run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "runs" / run / "run.json").read_text())
    return content


def in_the_middle(directory: Path) -> list[str]:
    """The runs that are going and have a checkpoint to go on from."""
    going = [path.parent for path in directory.glob("runs/*/run.json") if '"running"' in path.read_text()]
    return [run.name for run in going if any(run.glob("checkpoints/[0-9]*/state.json"))]
