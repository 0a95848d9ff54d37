"""Checkpoints: written whole or not at all, checked by hash, and nothing in them can run code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from detent.config import Config, ConfigError
from detent.policy import Policy
from detent.runlog import RunError, read_run_config
from detent.spaces import ActionSpec, EnvSpec, ObservationSpec

Kind = Literal["scheduled", "final", "best"]
"""`scheduled`: environments are rebuilt here in every run, so resuming is exact; `final`: saved where the run
ended or was stopped; `best`: saved only because its evaluation was the best so far."""


class DamagedCheckpointError(RunError):
    pass


@dataclass(frozen=True)
class State:
    """What `state.json` holds beside the hashes."""

    step: int
    iteration: int
    kind: Kind
    best_step: int | None
    best_score: float | None
    spec: EnvSpec


def save(run: Path, state: State, policy: Mapping[str, Tensor], trainer: Mapping[str, Tensor]) -> Path:
    """Write `checkpoints/<step>`: into a temporary directory, to disk, then renamed."""
    target = directory(run, state.step)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, tensors in (("policy", policy), ("trainer", trainer)):
        save_file({key: value.contiguous() for key, value in tensors.items()}, temporary / f"{name}.safetensors")
    hashes = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
    (temporary / "state.json").write_text(json.dumps({**asdict(state), "hashes": hashes}, indent=2) + "\n")
    for path in (*temporary.iterdir(), temporary):
        _fsync(path)
    temporary.replace(target)
    _fsync(target.parent)
    return target


def directory(run: Path, step: int) -> Path:
    return run / "checkpoints" / str(step)


def steps(run: Path) -> list[int]:
    """Steps of all checkpoints, ascending."""
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit())


def read_state(path: Path) -> State:
    """The verified `state.json` of a checkpoint; a damaged one is refused by name."""
    try:
        content = json.loads((path / "state.json").read_text())
        hashes = content.pop("hashes")
        for name in ("policy.safetensors", "trainer.safetensors"):
            if _sha256(path / name) != hashes[name]:
                raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name} does not match its hash")
        spec = content.pop("spec")
        return State(
            **content,
            spec=EnvSpec(
                ObservationSpec(spec["observation"]["size"], tuple(spec["observation"]["keys"])),
                ActionSpec(tuple(spec["action"]["low"]), tuple(spec["action"]["high"])),
                spec["max_episode_steps"],
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error}") from None


def load_tensors(path: Path, name: Literal["policy", "trainer"], device: str = "cpu") -> dict[str, Tensor]:
    try:
        return load_file(path / f"{name}.safetensors", device=device)
    except SafetensorError as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name}.safetensors: {error}") from None


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def find_resumable(run: Path, exact: bool) -> tuple[State | None, list[str]]:
    """The latest intact checkpoint to go on from (`exact`: a scheduled one), and what was passed over as damaged.

    None means the beginning: a run killed before its first checkpoint starts again, to the same end.
    """
    wanted = ("scheduled",) if exact else ("scheduled", "final")
    damaged: list[str] = []
    for step in reversed(steps(run)):
        try:
            state = read_state(directory(run, step))
        except DamagedCheckpointError as error:
            damaged.append(str(error))
            continue
        if state.kind in wanted:
            return state, damaged
    return None, damaged


def prune(run: Path, keep: int) -> None:
    """Remove all but the latest `keep` resumable checkpoints and the bests that those and the newest name.

    A damaged one neither counts nor goes: training does not stop for it, and its owner may still want to look.
    """
    states: list[State] = []
    for step in steps(run):
        with contextlib.suppress(DamagedCheckpointError):
            states.append(read_state(directory(run, step)))
    resumable = [state for state in states if state.kind != "best"][-keep:]
    needed = {state.step for state in resumable} | {state.best_step for state in (*resumable, *states[-1:])}
    for state in states:
        if state.step not in needed:
            shutil.rmtree(directory(run, state.step))


def remove_after(run: Path, step: int) -> None:
    """Remove checkpoints past `step`: a run resumed there makes them again."""
    for later in steps(run):
        if later > step:
            shutil.rmtree(directory(run, later))


def locate(run: Path, which: str) -> Path:
    """The directory of checkpoint `best`, `latest` or a step number."""
    available = steps(run)
    if not available:
        raise ConfigError(f"{run} has no checkpoint yet")
    if which == "latest":
        return directory(run, available[-1])
    if which == "best":
        best = read_state(directory(run, available[-1])).best_step
        return directory(run, available[-1] if best is None else best)
    if not which.isdigit() or int(which) not in available:
        raise ConfigError(
            f"{run} has no checkpoint '{which}'; there are best, latest, {', '.join(map(str, available))}"
        )
    return directory(run, int(which))


def load_policy(run: Path | str, checkpoint: str = "best", device: str = "cpu") -> tuple[Policy, State, Config]:
    """The policy of a run as it was saved, ready to act, with the state and configuration it belongs to."""
    run = Path(run)
    config = read_run_config(run)
    path = locate(run, checkpoint)
    state = read_state(path)
    policy = Policy(state.spec, config)
    policy.load_state_dict(load_tensors(path, "policy"))
    return policy.to(device).eval(), state, config


def load(run: Path | str, checkpoint: str = "best", device: str = "cpu") -> Policy:
    """The policy of a run: `action = load(run)(observation)`. `checkpoint` is `best`, `latest` or a step number."""
    return load_policy(run, checkpoint, device)[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
