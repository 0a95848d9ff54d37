"""Write checkpoints atomically, with the hashes of their files, and remove old ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from detent.config import Readout
from detent.errors import ConfigError
from detent.models.checkpoints import DamagedCheckpointError, State, directory, read_all, sha256, steps


def save(run: Path, state: State, policy: Mapping[str, Tensor], trainer: Mapping[str, Tensor]) -> Path:
    """Write `checkpoints/<step>` atomically: to a temporary directory, synced to disk, then renamed."""
    target = directory(run, state.step)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, tensors in (("policy", policy), ("trainer", trainer)):
        save_file(_separate(tensors), temporary / f"{name}.safetensors")
    hashes = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
    (temporary / "state.json").write_text(json.dumps({**asdict(state), "hashes": hashes}, indent=2) + "\n")
    for path in (*temporary.iterdir(), temporary):
        _fsync(path)
    temporary.replace(target)
    _fsync(target.parent)
    return target


def set_readout(path: Path, readout: Readout) -> None:
    """Let the checkpoint at `path` remember the readout that a call of its policy uses."""
    content = json.loads((path / "state.json").read_text())
    temporary = path / ".state.json"
    temporary.write_text(json.dumps({**content, "readout": readout}, indent=2) + "\n")
    _fsync(temporary)
    temporary.replace(path / "state.json")
    _fsync(path)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that are one and the same, as tied weights are: the file format has no place for that."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for key, value in tensors.items():
        tied = value.numel() > 0 and value.data_ptr() in seen
        seen.add(value.data_ptr())
        out[key] = value.clone() if tied else value.contiguous()
    return out


def find_resumable(run: Path, exact: bool) -> tuple[State | None, list[str]]:
    """Return the latest intact checkpoint to resume from (`exact`: a scheduled one), and what is damaged after it.

    None means the beginning: a run killed before its first checkpoint starts over, with the same result. Saved work is
    never discarded for that: if only a checkpoint of another kind or a damaged one exists, this raises an error.
    """
    states, damaged = read_all(run)
    resumable = [state for state in states if state.kind != "best"]
    wanted = [state for state in resumable if state.kind == "scheduled" or not exact]
    if wanted:
        return wanted[-1], [sentence for step, sentence in damaged.items() if step > wanted[-1].step]
    if resumable:
        raise ConfigError(
            f"{run} has no scheduled checkpoint to go back to; without --exact it resumes from step "
            f"{resumable[-1].step:,}"
        )
    if damaged:
        raise DamagedCheckpointError(f"{run} has no intact checkpoint to resume from: {'; '.join(damaged.values())}")
    return None, []


def prune(run: Path, keep: int) -> None:
    """Remove all but the latest `keep` resumable checkpoints, the latest scheduled one, and the best ones they name.

    Damaged checkpoints are neither counted nor removed: training does not stop for them, and their owner may want to
    inspect them.
    """
    states, _ = read_all(run)
    resumable = [state for state in states if state.kind != "best"][-keep:]
    resumable += [state for state in states if state.kind == "scheduled"][-1:]
    needed = {state.step for state in resumable} | {state.best_step for state in (*resumable, *states[-1:])}
    for state in states:
        if state.step not in needed:
            _remove(directory(run, state.step))


def _remove(path: Path) -> None:
    """Delete a checkpoint so that a crash never leaves half of one under its name."""
    doomed = path.with_name(f".{path.name}.deleted")
    shutil.rmtree(doomed, ignore_errors=True)
    path.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_after(run: Path, step: int) -> None:
    """Remove checkpoints past `step`, newest first: a run resumed at `step` writes them again."""
    for later in reversed(steps(run)):
        if later > step:
            _remove(directory(run, later))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
