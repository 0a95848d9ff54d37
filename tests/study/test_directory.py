"""The study directory: what it is told to hold, and what is read off it at any time."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from detent.errors import ConfigError
from detent.study.directory import last_row, read_state, read_study, require_same_study, write_study
from detent.study.plan import make_study
from detent.study.process import note_failure, train_words
from detent.training.run_directory import HEARTBEAT_TIMEOUT, RunLog, acquire_lock, lock_holder, release_lock

CONTENT: dict[str, Any] = {"tasks": ["Ant-v4"], "variants": ["rn-d"], "seeds": [1, 2], "steps": 100_000}
STUDY = make_study("mine", CONTENT)
ENTRY = STUDY.runs[0].entry()
PLAY = {"return": 12.5, "score": 0.1}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_study(tmp_path, STUDY)
    return tmp_path


def begin(directory: Path) -> RunLog:
    """A run that has made one iteration and one evaluation, and goes on."""
    log = RunLog.create(directory / ENTRY["path"], STUDY.runs[0].config)
    log.start({})
    log.append("metrics", {"step": 17408, "return": 3.0, "time/sps": 1000.0})
    log.append("evals", {"step": 17408, "stochastic": PLAY, "deterministic": PLAY})
    return log


def save_checkpoint(directory: Path, step: int, kind: str) -> None:
    path = directory / ENTRY["path"] / "checkpoints" / str(step)
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"kind": kind}))


def test_a_run_is_waiting_running_interrupted_failed_or_finished(directory: Path) -> None:
    def status() -> str:
        return read_state(directory, ENTRY).status

    assert status() == "waiting"
    log = begin(directory)
    state = read_state(directory, ENTRY)
    assert (state.status, state.reason) == ("running", f"process {os.getpid()} on {socket.gethostname()}")
    assert (state.step, state.total_steps, state.steps_per_second) == (17408, 1024 + 7 * 16384, 1000.0)
    assert state.seconds_left == pytest.approx((1024 + 7 * 16384 - 17408) / 1000)
    assert state.evaluation == PLAY
    log.close()
    assert status() == "interrupted"
    note_failure(directory, ENTRY, "the motor is gone")
    failed = read_state(directory, ENTRY)
    assert (failed.status, failed.reason, failed.seconds_left) == ("failed", "the motor is gone", None)
    log, _ = RunLog.reopen(directory / ENTRY["path"])
    assert status() == "running", "a run that was taken up again is not failed any more"
    log.set_status("finished", "all steps done")
    log.close()
    assert (status(), read_state(directory, ENTRY).seconds_left) == ("finished", 0.0)


def test_a_run_on_another_machine_is_running_while_it_is_heard_of(directory: Path) -> None:
    begin(directory).close()
    lock = directory / ENTRY["path"] / "lock"
    lock.write_text("elsewhere 4711\n")
    assert read_state(directory, ENTRY).reason == "process 4711 on elsewhere"
    then = time.time() - HEARTBEAT_TIMEOUT - 1
    os.utime(lock, (then, then))
    assert read_state(directory, ENTRY).status == "interrupted"


def test_looking_at_a_lock_leaves_it_to_others(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    lock = acquire_lock(tmp_path)
    assert lock_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    release_lock(lock)
    assert lock_holder(tmp_path) is None
    # A process that was killed leaves its name, and no lock.
    (tmp_path / "lock").write_text(f"{socket.gethostname()} 1\n")
    assert lock_holder(tmp_path) is None
    release_lock(acquire_lock(tmp_path))


def test_the_last_whole_row_is_found_in_torn_and_long_files(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) is None
    path.write_text("".join(json.dumps({"step": step, "filler": "x" * 500}) + "\n" for step in range(1000)))
    assert (last_row(path) or {})["step"] == 999
    with path.open("a") as file:
        file.write('{"step": 1000, "fil')
    assert (last_row(path) or {})["step"] == 999


def test_a_run_goes_on_exactly_or_begins_again(directory: Path) -> None:
    run = directory / ENTRY["path"]
    fresh = ["train", "--config", str(directory / "plan" / f"{ENTRY['id']}.toml"), "--out", str(run)]
    onward = ["train", "--resume", str(run), "--exact", "--trust"]
    assert train_words(directory, ENTRY) == fresh
    # Killed while its configuration was being written.
    run.mkdir()
    (run / ".config.toml.4711").write_text("half")
    assert train_words(directory, ENTRY) == fresh
    assert not run.exists()
    begin(directory).close()
    assert train_words(directory, ENTRY) == onward, "without a checkpoint --resume starts from the beginning"
    save_checkpoint(directory, 20, "best")
    assert train_words(directory, ENTRY) == onward
    save_checkpoint(directory, 10, "scheduled")
    save_checkpoint(directory, 30, "final")
    assert train_words(directory, ENTRY) == onward
    (run / "checkpoints" / "10" / "state.json").unlink()
    assert train_words(directory, ENTRY) == fresh, "stopped before any checkpoint that resuming is exact from"
    assert not run.exists()


def test_a_study_may_grow_in_its_directory_and_no_other_may_use_it(directory: Path) -> None:
    grown = make_study("mine", {**CONTENT, "seeds": [1, 2, 3]})
    require_same_study(directory, grown)
    write_study(directory, grown)
    assert [entry["seed"] for entry in read_study(directory)["runs"]] == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"holds another version of 'mine': 1 of its 3 runs .*-s3-\w+\)"):
        require_same_study(directory, STUDY)
    with pytest.raises(ConfigError, match="holds another version of 'mine': 3 of its 3 runs"):
        require_same_study(directory, make_study("mine", {**CONTENT, "steps": 200_000}))
    with pytest.raises(ConfigError, match="holds the study 'mine', not 'other'; choose another --out"):
        require_same_study(directory, make_study("other", CONTENT))


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_text("cat")
    with pytest.raises(ConfigError, match=r"is not empty and holds no study \(cat.jpg, ...\)"):
        require_same_study(tmp_path, STUDY)
    with pytest.raises(ConfigError, match=r"is not a study directory: it has no study.json"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ConfigError, match=r"study.json is not valid JSON"):
        read_study(tmp_path)
