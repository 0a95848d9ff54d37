"""The run directory: one process at a time, nothing overwritten, nothing half written."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from detent.config import Config
from detent.config.io import load_config, read_run_config
from detent.errors import ConfigError, RunError
from detent.training.run_directory import HEARTBEAT_TIMEOUT, RunLog, read_rows, write_json

CONFIG = Config(task="Hopper-v4", seed=3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that another process has left."""
    RunLog.create(tmp_path / "run", CONFIG).close()
    return tmp_path / "run"


def info(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "run.json").read_text())
    return content


def leave_lock(run: Path, host: str, age: float) -> None:
    (run / "lock").write_text(f"{host} 4711\n")
    then = time.time() - age
    os.utime(run / "lock", (then, then))


def test_a_new_run_holds_its_configuration_and_says_what_it_is(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "deep" / "run", CONFIG)
    log.start({"cores": 2})
    log.close()
    assert load_config(tmp_path / "deep" / "run" / "config.toml") == CONFIG
    found = info(tmp_path / "deep" / "run")
    assert (found["task"], found["variant"], found["algo"], found["seed"]) == ("Hopper-v4", "rn-d", "ppo", 3)
    assert (found["status"], found["exit_reason"], found["interruptions"]) == ("running", None, [])
    assert found["hardware"] == {"cores": 2}
    assert {"python", "torch", "numpy"} <= set(found["versions"])


def test_an_empty_directory_can_be_used_and_any_other_is_left_alone(tmp_path: Path, run: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunLog.create(tmp_path / "empty", CONFIG).close()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    (tmp_path / "file").write_text("text")
    for name, hint in (("run", f"detent train --resume {run} continues it"), ("photos", "not empty"), ("file", "")):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(ConfigError, match=rf"{name} exists already .*{re.escape(hint)}.*choose another --out"):
            RunLog.create(tmp_path / name, Config(task="Ant-v4"))
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert load_config(run / "config.toml") == CONFIG


def test_a_directory_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(ConfigError, match=r"cannot be created \(Not a directory\); choose another --out"):
        RunLog.create(tmp_path / "file" / "run", CONFIG)


def test_a_second_hold_in_this_process_or_another_is_refused(run: Path) -> None:
    log, _ = RunLog.reopen(run)
    sentence = f"{run} is in use by process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RunError, match=re.escape(sentence)):
        RunLog.reopen(run)
    code = (
        f"from pathlib import Path; from detent.training.run_directory import RunLog; RunLog.reopen(Path({str(run)!r}))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert sentence in other.stderr
    log.close()
    RunLog.reopen(run)[0].close()


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_a_lock_left_behind_is_taken_over(run: Path, host: str) -> None:
    # This host's kernel has dropped a dead process's lock; of another host only the heartbeat tells, here an old one.
    leave_lock(run, host, age=HEARTBEAT_TIMEOUT + 5 if host == "elsewhere" else 0)
    log, _ = RunLog.reopen(run)
    assert (run / "lock").read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    log.close()


def test_a_fresh_lock_of_another_host_is_respected(run: Path) -> None:
    leave_lock(run, "elsewhere", age=30)
    with pytest.raises(RunError, match=r"in use by process 4711 on elsewhere \(last heartbeat 3\d s ago\)"):
        RunLog.reopen(run)
    assert (run / "lock").read_text() == "elsewhere 4711\n"


def test_the_heartbeat_keeps_the_lock_fresh(run: Path) -> None:
    log, _ = RunLog.reopen(run)
    os.utime(run / "lock", (0, 0))
    log.heartbeat()
    assert time.time() - (run / "lock").stat().st_mtime < 60
    log.close()


def test_a_closed_run_can_go_on_at_once_on_another_host(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunLog.reopen(run)[0].close()
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    log, _ = RunLog.reopen(run)
    assert (run / "lock").read_text() == f"elsewhere {os.getpid()}\n"
    log.close()
    assert (run / "lock").read_text() == ""


def test_rows_come_back_with_null_for_what_json_cannot_say(run: Path) -> None:
    log, _ = RunLog.reopen(run)
    nan, infinity = float("nan"), float("inf")
    log.append("evals", {"step": 1, "kl": nan, "play": {"return": infinity, "ci95": [0.5, nan]}, "none": None})
    text = (run / "evals.jsonl").read_text()
    log.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {
        "step": 1,
        "kl": None,
        "play": {"return": None, "ci95": [0.5, None]},
        "none": None,
    }
    assert read_rows(run / "evals.jsonl") == [json.loads(text)]


def test_a_torn_last_line_is_left_out_and_a_broken_one_before_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(RunError, match=f"line 2 of {re.escape(str(path))} is not valid JSON"):
        read_rows(path)


def test_rewinding_drops_later_rows_and_what_follows_is_appended(run: Path) -> None:
    log, _ = RunLog.reopen(run)
    for step in (10, 20, 30):
        log.append("metrics", {"step": step})
        log.append("evals", {"step": step})
    log.sync()
    log.close()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')
    log, _ = RunLog.reopen(run)
    log.rewind(20)
    log.append("metrics", {"step": 21})
    log.close()
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [10, 20, 21]
    assert [row["step"] for row in read_rows(run / "evals.jsonl")] == [10, 20]


def test_wall_time_adds_up_over_processes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for expected in (7.0, 14.0):
        log, _ = RunLog.reopen(run)
        now += 7.0
        log.set_status("stopped", "stopped on request")
        log.close()
        now += 100.0
        assert info(run)["wall_time"] == expected
    assert (info(run)["status"], info(run)["exit_reason"]) == ("stopped", "stopped on request")


def test_interruptions_are_kept_over_processes_also_without_a_run_json(run: Path) -> None:
    # A process killed right after it made the directory has left no run.json.
    assert not (run / "run.json").exists()
    for step, exact in ((0, True), (50, False)):
        log, _ = RunLog.reopen(run)
        log.interrupted(step, exact)
        log.start({})
        log.close()
    assert info(run)["interruptions"] == [
        {"resumed_at_step": 0, "exact": True},
        {"resumed_at_step": 50, "exact": False},
    ]
    assert info(run)["task"] == "Hopper-v4"


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"status": "running"})
    before = path.stat().st_ino
    with path.open() as reader:
        write_json(path, {"status": "finished"})
        assert json.load(reader) == {"status": "running"}, "who opened the old file reads all of it"
    assert path.stat().st_ino != before
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"status": object()})
    assert json.loads(path.read_text()) == {"status": "finished"}


def test_a_directory_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=f"{re.escape(str(path))} is not a run directory: it has no config.toml"):
            read_run_config(path)
        with pytest.raises(ConfigError, match="not a run directory"):
            RunLog.reopen(path)
    assert list(tmp_path.iterdir()) == []
