"""Run directories and studies as `detent train` and `detent study run` leave them, with scores chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from detent.config.io import save_config
from detent.config.presets import configure

RANDOM, TD3 = -70.288, 3942.0
"""Reference returns of Ant-v4."""

Rows = Sequence[Mapping[str, Any]]


def write_rows(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ant_return(score: float) -> float:
    """The return whose TD3-normalized score on Ant-v4 is `score`."""
    return RANDOM + score * (TD3 - RANDOM)


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """Make a run directory with `returns` at steps 0, `every`, 2 `every`, ..."""

    def make(
        path: Path,
        returns: Sequence[float],
        *,
        task: str = "Ant-v4",
        variant: str = "rn-d",
        algo: str = "ppo",
        preset: str = "paper",
        seed: int = 1,
        every: int = 100,
        steps: int | None = None,
        overrides: Mapping[str, Any] | None = None,
        success: Sequence[float] | None = None,
        metrics: Rows | None = None,
        status: str = "finished",
    ) -> Path:
        path.mkdir(parents=True)
        last = every * (len(returns) - 1)
        settings = {"seed": seed, "steps": steps or max(last, 1), **(overrides or {})}
        if algo == "td3":
            named = {"task": task, "variant": variant, "algo": algo, "preset": preset}
            (path / "config.toml").write_text(tomli_w.dumps(named | settings))
        else:
            config = configure(task, variant=variant, preset=preset, algo=algo, overrides=settings)
            save_config(config, path / "config.toml")
        (path / "run.json").write_text(json.dumps({"status": status, "exit_reason": None}))
        evaluations = []
        for number, value in enumerate(returns):
            played: dict[str, Any] = {"return": value, "std": 1.0, "episodes": 10}
            played |= {} if success is None else {"success": success[number]}
            evaluations.append({"step": every * number, "stochastic": played, "deterministic": played})
        write_rows(path / "evals.jsonl", evaluations)
        # An iteration between two evaluations, half a minute each.
        timed = [
            {"step": every * number, "time/iteration": 30.0, "time/sps": every / 30}
            for number in range(1, len(returns))
        ]
        write_rows(path / "metrics.jsonl", timed if metrics is None else metrics)
        return path

    return make


@pytest.fixture
def make_study(make_run: Callable[..., Path]) -> Callable[..., Path]:
    """Make a study directory; each run is what `make_run` takes, and `returns=None` is one that has not begun."""

    def make(directory: Path, runs: Sequence[Mapping[str, Any]]) -> Path:
        directory.mkdir(parents=True)
        entries = []
        for number, run in enumerate(runs):
            given = dict(run)
            returns = given.pop("returns")
            steps = given.pop("steps", None) or given.get("every", 100) * (len(returns or [0]) - 1)
            entries.append(
                {
                    "id": f"run{number}",
                    "path": f"runs/run{number}",
                    "task": given.get("task", "Ant-v4"),
                    "variant": given.get("variant", "rn-d"),
                    "algo": given.get("algo", "ppo"),
                    "preset": given.get("preset", "paper"),
                    "seed": given.get("seed", 1),
                    "steps": steps,
                    "overrides": given.get("overrides", {}),
                }
            )
            if returns is not None:
                make_run(directory / "runs" / f"run{number}", returns, steps=steps, **given)
        about = {"name": "made", "description": "A study made by a test.", "cites": "figure 9"}
        (directory / "study.json").write_text(json.dumps(about | {"runs": entries}))
        return directory

    return make
