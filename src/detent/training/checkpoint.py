"""Checkpoints: written whole or not at all, checked by hash, and nothing in them can run code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from detent.config import Config, ConfigError
from detent.config.presets import BASELINES
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec
from detent.training.run_directory import RunError, read_run_config

Kind = Literal["scheduled", "final", "best"]
"""`scheduled`: environments are rebuilt here in every run, so resuming is exact; `final`: saved where the run
ended or was stopped; `best`: saved only because its evaluation was the best so far."""


Score = tuple[float, float]
"""What policies are ranked by: success rate (0 where none was ever reported), then return."""


class DamagedCheckpointError(RunError):
    pass


@dataclass(frozen=True)
class State:
    """What `state.json` holds beside the hashes."""

    step: int
    iteration: int
    kind: Kind
    best_step: int | None
    best_score: Score | None
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
        spec, best_score = content.pop("spec"), content.pop("best_score")
        return State(
            **content,
            best_score=None if best_score is None else (best_score[0], best_score[1]),
            spec=EnvSpec(
                ObservationSpec(
                    spec["observation"]["size"],
                    tuple(spec["observation"]["keys"]),
                    tuple(spec["observation"].get("image", ())),
                ),
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

    None means the beginning: a run killed before its first checkpoint starts again, to the same end. Work that is
    there is never thrown away for that: it is refused where something else was saved or a checkpoint is damaged.
    """
    states, damaged = _read_all(run)
    resumable = [state for state in states if state.kind != "best"]
    wanted = [state for state in resumable if state.kind == "scheduled" or not exact]
    if wanted:
        return wanted[-1], [sentence for step, sentence in damaged.items() if step > wanted[-1].step]
    if resumable:
        raise ConfigError(
            f"{run} has no scheduled checkpoint to go back to; without --exact it goes on from step "
            f"{resumable[-1].step:,}"
        )
    if damaged:
        raise DamagedCheckpointError(f"{run} has no intact checkpoint to go on from: {'; '.join(damaged.values())}")
    return None, []


def prune(run: Path, keep: int) -> None:
    """Remove all but the latest `keep` resumable checkpoints, the latest scheduled one, and the bests that they name.

    A damaged one neither counts nor goes: training does not stop for it, and its owner may still want to look.
    """
    states, _ = _read_all(run)
    resumable = [state for state in states if state.kind != "best"][-keep:]
    resumable += [state for state in states if state.kind == "scheduled"][-1:]
    needed = {state.step for state in resumable} | {state.best_step for state in (*resumable, *states[-1:])}
    for state in states:
        if state.step not in needed:
            _remove(directory(run, state.step))


def _read_all(run: Path) -> tuple[list[State], dict[int, str]]:
    """The intact checkpoints, ascending, and what is wrong with the others, newest first."""
    states: list[State] = []
    damaged: dict[int, str] = {}
    for step in reversed(steps(run)):
        try:
            states.insert(0, read_state(directory(run, step)))
        except DamagedCheckpointError as error:
            damaged[step] = str(error)
    return states, damaged


def _remove(path: Path) -> None:
    """Delete a checkpoint so that a crash leaves no half of one under its name."""
    doomed = path.with_name(f".{path.name}.deleted")
    shutil.rmtree(doomed, ignore_errors=True)
    path.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_after(run: Path, step: int) -> None:
    """Remove checkpoints past `step`, the newest first: a run resumed there makes them again."""
    for later in reversed(steps(run)):
        if later > step:
            _remove(directory(run, later))


def locate(run: Path, which: str) -> Path:
    """The directory of checkpoint `best`, `latest` or a step number; a damaged one is passed over for those before."""
    available = steps(run)
    if not available:
        raise ConfigError(f"{run} has no checkpoint yet")
    if which in ("latest", "best"):
        states, damaged = _read_all(run)
        if not states:
            raise DamagedCheckpointError(f"{run} has no intact checkpoint: {'; '.join(damaged.values())}")
        if available[-1] in damaged:
            warnings.warn(f"{damaged[available[-1]]}; using one before", stacklevel=2)
        intact = {state.step for state in states}
        best = next((state.best_step for state in reversed(states) if state.best_step in intact), None)
        return directory(run, states[-1].step if which == "latest" or best is None else best)
    if not which.isdigit() or int(which) not in available:
        raise ConfigError(
            f"{run} has no checkpoint '{which}'; there are best, latest, {', '.join(map(str, available))}"
        )
    return directory(run, int(which))


def load_policy(run: Path | str, checkpoint: str = "best", device: str = "cpu") -> tuple[Policy, State, Config]:
    """The policy of a run as it was saved, ready to act, with the state and configuration it belongs to."""
    run = Path(run)
    config = read_run_config(run)
    if config.algo in BASELINES:
        raise ConfigError(
            f"{run} is a {config.algo} run, which has no Detent policy; its weights are in {run / 'weights'}, and "
            f"detent.baselines.{config.algo}.load_actor reads them"
        )
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
