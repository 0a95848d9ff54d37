"""Checkpoints: whole or refused, pruned to what is needed, and never able to run code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors import safe_open

import detent
from detent.config import Config
from detent.config.io import save_config
from detent.config.presets import configure
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.checkpoints import DamagedCheckpointError, Kind, State, load_policy, locate, read_state
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec
from detent.training import checkpoint
from detent.training.checkpoint import find_resumable, prune

SPEC = EnvSpec(ObservationSpec(3, ("a", "b")), ActionSpec((-3.0, 0.0), (-1.0, 10.0)), 8)
CONFIG = configure("Hopper-v4", overrides={"actor.width": 4, "actor.depth": 1, "head.bins": 3})


def save(run: Path, step: int, kind: Kind = "scheduled", best: int | None = None) -> Path:
    """A checkpoint with a tensor that tells its step."""
    state = State(step, step // 10, kind, best, None if best is None else (0.0, 0.1 + best), SPEC)
    return checkpoint.save(run, state, {"step": torch.tensor([step])}, {"adam": torch.zeros(2)})


def save_policy(run: Path, seed: int = 0, step: int = 10) -> Policy:
    """A run with one real policy."""
    run.mkdir(exist_ok=True)
    save_config(CONFIG, run / "config.toml")
    policy = Policy(SPEC, Config(seed=seed, actor=CONFIG.actor, head=CONFIG.head))
    policy.update_statistics({"state": torch.randn(100, 3) * 5 + 2})
    checkpoint.save(run, State(step, 1, "final", step, (0.0, 1.5), SPEC), policy.state_dict(), {"adam": torch.zeros(1)})
    return policy


def damage(path: Path) -> None:
    """One bit flips."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_state_comes_back_as_it_was(tmp_path: Path) -> None:
    # Sums of binary fractions and an awkward decimal: no digit may be lost.
    state = State(12345678901, 7, "best", 99, (1 / 3, 0.1 + 0.2), SPEC)
    path = checkpoint.save(tmp_path, state, {"weight": torch.ones(2)}, {})
    assert path == tmp_path / "checkpoints" / "12345678901"
    assert read_state(path) == state


def test_files_are_safetensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    assert sorted(file.name for file in path.iterdir()) == ["policy.safetensors", "state.json", "trainer.safetensors"]
    for name in ("policy", "trainer"):
        with safe_open(path / f"{name}.safetensors", "pt") as file:
            assert file.keys()
    hashes = json.loads((path / "state.json").read_text())["hashes"]
    assert hashes == {
        f"{name}.safetensors": hashlib.sha256((path / f"{name}.safetensors").read_bytes()).hexdigest()
        for name in ("policy", "trainer")
    }


def test_no_module_of_the_package_can_unpickle() -> None:
    # Pickling is fine: what is sent to worker processes must be.
    unpickles = re.compile(r"\bpickle\.loads?\b|Unpickler|from pickle import|torch\.load\(|allow_pickle\s*=\s*True")
    sources = sorted(Path(detent.__file__).parent.rglob("*.py"))
    assert Path(checkpoints.__file__) in sources
    assert [path for path in sources if unpickles.search(path.read_text())] == []


@pytest.mark.parametrize("name", ["policy.safetensors", "trainer.safetensors"])
def test_a_flipped_bit_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    damage(path / name)
    with pytest.raises(DamagedCheckpointError, match=rf"{path} is damaged: {name} does not match its hash"):
        read_state(path)


@pytest.mark.parametrize("mistake", ["missing", "torn", "no hash", "no field", "not an object"])
def test_an_unreadable_state_is_refused_by_name(mistake: str, tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    state = json.loads((path / "state.json").read_text())
    if mistake == "missing":
        (path / "policy.safetensors").unlink()
    if mistake == "no hash":
        del state["hashes"]["policy.safetensors"]
    if mistake == "no field":
        del state["best_step"]
    text = json.dumps([] if mistake == "not an object" else state)
    (path / "state.json").write_text(text[:-20] if mistake == "torn" else text)
    with pytest.raises(DamagedCheckpointError, match=rf"checkpoint {path} is damaged: "):
        read_state(path)


def test_resuming_takes_the_latest_intact_checkpoint(tmp_path: Path) -> None:
    assert find_resumable(tmp_path, exact=False) == (None, [])
    kinds: dict[int, checkpoints.Kind] = {10: "scheduled", 20: "scheduled", 30: "final", 40: "best"}
    for step, kind in kinds.items():
        save(tmp_path, step, kind)

    def found(exact: bool) -> tuple[int | None, int]:
        state, damaged = find_resumable(tmp_path, exact)
        return (None if state is None else state.step), len(damaged)

    assert found(exact=False) == (30, 0), "a best checkpoint is no place to go on from"
    assert found(exact=True) == (20, 0)
    damage(tmp_path / "checkpoints" / "30" / "trainer.safetensors")
    assert found(exact=False) == (20, 1)
    damage(tmp_path / "checkpoints" / "20" / "policy.safetensors")
    state, damaged = find_resumable(tmp_path, exact=False)
    assert state is not None
    assert state.step == 10
    assert ["30 is damaged" in damaged[0], "20 is damaged" in damaged[1]] == [True, True]
    damage(tmp_path / "checkpoints" / "10" / "policy.safetensors")
    with pytest.raises(DamagedCheckpointError, match=r"has no intact checkpoint to resume from.*30 is damaged"):
        found(exact=False)


def test_exact_without_a_scheduled_checkpoint_is_refused_where_work_would_be_lost(tmp_path: Path) -> None:
    save(tmp_path, 10, "best")
    assert find_resumable(tmp_path, exact=True) == (None, []), "killed before its first checkpoint: from the beginning"
    save(tmp_path, 20, "final")
    with pytest.raises(ConfigError, match=r"no scheduled checkpoint.* without --exact it resumes from step 20"):
        find_resumable(tmp_path, exact=True)


def test_pruning_keeps_the_latest_scheduled_checkpoint_whatever_came_after(tmp_path: Path) -> None:
    save(tmp_path, 10, "best", best=10)
    save(tmp_path, 20, "scheduled", best=10)
    for step in (30, 40, 50):
        save(tmp_path, step, "final", best=30)
    prune(tmp_path, keep=1)
    assert checkpoints.steps(tmp_path) == [10, 20, 30, 50]


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    save(tmp_path, 10, best=10)
    save(tmp_path, 20, best=10)
    save(tmp_path, 30, best=30)
    damage(tmp_path / "checkpoints" / "30" / "trainer.safetensors")
    for which, name in (("latest", "20"), ("best", "10")):
        with pytest.warns(UserWarning, match=r"checkpoint .*30 is damaged: .*; using an earlier one"):
            assert locate(tmp_path, which).name == name
    for step in ("10", "20"):
        damage(tmp_path / "checkpoints" / step / "policy.safetensors")
    with pytest.raises(DamagedCheckpointError, match=r"has no intact checkpoint: .*30 is.*20 is.*10 is damaged"):
        locate(tmp_path, "best")


def test_an_interrupted_write_is_no_checkpoint_and_does_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10)
    with monkeypatch.context() as patch:

        def crash(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(checkpoint, "_fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == [".20.tmp", "10"]
    assert checkpoints.steps(tmp_path) == [10]
    assert locate(tmp_path, "latest").name == "10"
    assert read_state(save(tmp_path, 20)).step == 20
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]


def test_pruning_keeps_the_latest_and_every_best_they_name(tmp_path: Path) -> None:
    save(tmp_path, 10, "best", best=10)
    save(tmp_path, 20, best=10)
    save(tmp_path, 30, "best", best=30)
    save(tmp_path, 40, best=30)
    save(tmp_path, 50, best=30)
    save(tmp_path, 60, "best", best=60)
    prune(tmp_path, keep=3)
    assert checkpoints.steps(tmp_path) == [10, 20, 30, 40, 50, 60]
    prune(tmp_path, keep=2)
    assert checkpoints.steps(tmp_path) == [30, 40, 50, 60], "10 was the best of 20 only"
    save(tmp_path, 70, best=60)
    prune(tmp_path, keep=1)
    assert checkpoints.steps(tmp_path) == [60, 70]


def test_pruning_passes_over_a_damaged_checkpoint(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    damage(tmp_path / "checkpoints" / "20" / "policy.safetensors")
    prune(tmp_path, keep=1)
    assert checkpoints.steps(tmp_path) == [20, 30]


def test_checkpoints_past_the_resume_point_are_removed(tmp_path: Path) -> None:
    for step in (10, 20, 100):
        save(tmp_path, step)
    checkpoint.remove_after(tmp_path, 10)
    assert checkpoints.steps(tmp_path) == [10]


def test_best_latest_and_steps_are_located_and_others_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} has no checkpoint yet"):
        locate(tmp_path, "latest")
    save(tmp_path, 9)
    assert locate(tmp_path, "best").name == "9", "before the first evaluation the latest has to do"
    save(tmp_path, 20, best=9)
    save(tmp_path, 100, best=20)
    for which, name in (("latest", "100"), ("best", "20"), ("9", "9"), ("20", "20")):
        assert locate(tmp_path, which).name == name
    for which in ("30", "worst", "-9", "../..", ""):
        sentence = f"{tmp_path} has no checkpoint '{which}'; there are best, latest, 9, 20, 100"
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            locate(tmp_path, which)


def test_a_loaded_policy_acts_as_the_saved_one(tmp_path: Path) -> None:
    policy = save_policy(tmp_path)
    loaded, state, config = load_policy(tmp_path)
    assert (state.step, state.spec, config) == (10, SPEC, CONFIG)
    assert not loaded.training
    observations = {"a": np.random.default_rng(0).normal(size=(50, 2)), "b": np.ones((50, 1))}
    np.testing.assert_array_equal(loaded(observations), policy(observations))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    np.testing.assert_array_equal(
        loaded(observations, readout="sample", generator=generators[0]),
        policy(observations, readout="sample", generator=generators[1]),
    )
    np.testing.assert_array_equal(checkpoints.load(str(tmp_path), "10")(observations), policy(observations))
    other = save_policy(tmp_path / "other", seed=1)
    assert not np.array_equal(other(observations, readout="sample"), policy(observations, readout="sample"))


class Malice:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["policy", "trainer"])
@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_under_our_name_is_refused_and_not_run(
    name: Literal["policy", "trainer"], writer: str, tmp_path: Path
) -> None:
    save_policy(tmp_path)
    path, proof = tmp_path / "checkpoints" / "10", tmp_path / "proof"
    file = path / f"{name}.safetensors"
    malice = Malice(f"touch {proof}")
    if writer == "pickle":
        file.write_bytes(pickle.dumps(malice))
    else:
        torch.save(malice, file)
    with pytest.raises(DamagedCheckpointError, match=f"{name}.safetensors does not match its hash"):
        load_policy(tmp_path)
    # A stranger would make the hash fit.
    state = json.loads((path / "state.json").read_text())
    state["hashes"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DamagedCheckpointError, match=f"checkpoint {path} is damaged: {name}.safetensors"):
        checkpoints.load_tensors(path, name)
    if name == "policy":
        with pytest.raises(DamagedCheckpointError, match=f"checkpoint {path} is damaged: {name}.safetensors"):
            load_policy(tmp_path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(malice))
    assert proof.exists(), "the proof itself works"
