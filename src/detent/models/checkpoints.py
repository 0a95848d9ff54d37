"""Reading checkpoints: verified by hash, damaged ones rejected by name; nothing in them can run code."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from detent.config import READOUTS, Config, Readout
from detent.config.io import read_run_config
from detent.config.presets import BASELINES
from detent.errors import ConfigError, RunError
from detent.models.parts import model_plugins
from detent.models.policy import Policy
from detent.registry import allow_imports
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

Kind = Literal["scheduled", "final", "best"]
"""`scheduled`: saved where every run rebuilds its environments, so resuming is exact; `final`: saved where the run
ended or was stopped; `best`: saved only because its evaluation was the best so far."""


Score = tuple[float, float]
"""What policies are ranked by: success rate (0 if never reported), then return."""


class DamagedCheckpointError(RunError):
    """A checkpoint whose files are missing, truncated or modified."""


@dataclass(frozen=True)
class State:
    """Contents of `state.json`, except the hashes."""

    step: int
    iteration: int
    kind: Kind
    best_step: int | None
    best_score: Score | None
    spec: EnvSpec
    env_attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the training environments that callbacks have set."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    """States of the run's callbacks, by name."""
    readout: Readout | None = None
    """The readout that a call of the policy uses; None if nobody has measured or chosen one."""


def directory(run: Path, step: int) -> Path:
    return run / "checkpoints" / str(step)


def steps(run: Path) -> list[int]:
    """Return the steps of all checkpoints, ascending."""
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit())


def read_state(path: Path) -> State:
    """Read and verify the `state.json` of a checkpoint; a damaged checkpoint raises an error that names it."""
    try:
        content = json.loads((path / "state.json").read_text())
        hashes = content.pop("hashes")
        for name in ("policy.safetensors", "trainer.safetensors"):
            if sha256(path / name) != hashes[name]:
                raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name} does not match its hash")
        spec, best_score = content.pop("spec"), content.pop("best_score")
        if content.get("readout") not in (None, *READOUTS):
            raise ValueError(f"state.json has the unknown readout {content['readout']!r}")
        return State(
            **content,
            best_score=None if best_score is None else (best_score[0], best_score[1]),
            spec=EnvSpec(
                ObservationSpec(
                    spec["observation"]["size"],
                    tuple(spec["observation"]["keys"]),
                    tuple(spec["observation"].get("image", ())),
                ),
                _action_spec(**spec["action"]),
                spec["max_episode_steps"],
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error}") from None


def _action_spec(
    low: list[float], high: list[float], discrete: bool = False, shape: list[int] | None = None
) -> ActionSpec:
    """Return an action spec from JSON; checkpoints of earlier versions have bounds alone."""
    return ActionSpec(tuple(low), tuple(high), discrete, None if shape is None else tuple(shape))


def load_tensors(path: Path, name: Literal["policy", "trainer"], device: str = "cpu") -> dict[str, Tensor]:
    try:
        return load_file(path / f"{name}.safetensors", device=device)
    except SafetensorError as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name}.safetensors: {error}") from None


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def read_all(run: Path) -> tuple[list[State], dict[int, str]]:
    """Read the intact checkpoints, ascending, and the errors of the damaged ones by step, newest first."""
    states: list[State] = []
    damaged: dict[int, str] = {}
    for step in reversed(steps(run)):
        try:
            states.insert(0, read_state(directory(run, step)))
        except DamagedCheckpointError as error:
            damaged[step] = str(error)
    return states, damaged


def locate(run: Path, which: str) -> Path:
    """Return the directory of checkpoint `best`, `latest` (which both skip damaged ones) or a step number."""
    available = steps(run)
    if not available:
        raise ConfigError(f"{run} has no checkpoint yet")
    if which in ("latest", "best"):
        states, damaged = read_all(run)
        if not states:
            raise DamagedCheckpointError(f"{run} has no intact checkpoint: {'; '.join(damaged.values())}")
        if available[-1] in damaged:
            warnings.warn(f"{damaged[available[-1]]}; using an earlier one", stacklevel=2)
        intact = {state.step for state in states}
        named = next((state.best_step for state in reversed(states) if state.best_step is not None), None)
        best = next((state.best_step for state in reversed(states) if state.best_step in intact), None)
        if which == "best" and best != named:
            missing = damaged.get(named or 0, f"checkpoint {directory(run, named or 0)} is missing")
            warnings.warn(
                f"{missing}, and it is the best; using {states[-1].step if best is None else best} instead",
                stacklevel=2,
            )
        return directory(run, states[-1].step if which == "latest" or best is None else best)
    if not which.isdigit() or int(which) not in available:
        raise ConfigError(
            f"{run} has no checkpoint '{which}'; there are best, latest, {', '.join(map(str, available))}"
        )
    return directory(run, int(which))


def load_policy(
    run: Path | str, checkpoint: str | int = "best", device: str = "cpu", trust: bool = False
) -> tuple[Policy, State, Config]:
    """Load the policy of a run as it was saved, ready to act; also return its checkpoint's state and configuration."""
    run = Path(run)
    config = read_run_config(run)
    if config.algo in BASELINES:
        raise ConfigError(
            f"{run} is a {config.algo} run, which has no Detent policy; its weights are in {run / 'weights'}, and "
            f"detent.baselines.{config.algo}.load_actor reads them"
        )
    allow_imports(model_plugins(config), config.plugins, run, trust)
    path = locate(run, str(checkpoint))
    state = read_state(path)
    policy = Policy(state.spec, config)
    policy.load_state_dict(load_tensors(path, "policy"))
    if state.readout is not None:
        policy.readout = state.readout
    return policy.to(device).eval(), state, config


def load(run: Path | str, checkpoint: str | int = "best", device: str = "cpu", *, trust: bool = False) -> Policy:
    """Load the policy of a run: `action = load(run)(observation)`.

    `checkpoint` is `best`, `latest` or a step number. The policy plays the readout that the checkpoint remembers (the
    most probable action if it remembers none); set `policy.readout` to `sample`, `mode` or `mean` for another. A run
    that names plug-ins by import path is loaded only with `trust`, because importing them runs their code.
    """
    return load_policy(run, checkpoint, device, trust)[0]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
