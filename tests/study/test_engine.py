"""Running a study: only what is missing is done, and however often it is cut off, the results are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from studying import command, finish, in_the_middle, info, results, start, wait_until, write

from detent.cli import main
from detent.study.directory import Entry, failure_path, read_state, read_study
from detent.study.display import PlainLines
from detent.study.engine import run_study
from detent.study.local import LocalEngine
from detent.study.plan import make_study
from detent.study.process import Outcome, RunProcess
from detent.training.run_directory import acquire_lock, lock_holder, release_lock

TINY: dict[str, Any] = {"tasks": ["Ant-v4"], "variants": ["rn-d"], "seeds": [1, 2, 3]}


class Scripted:
    """An engine that does nothing, and ends each run's tries as it was told, by seed."""

    def __init__(self, script: dict[int, list[Outcome]], room: int = 1) -> None:
        self.script = {seed: deque(outcomes) for seed, outcomes in script.items()}
        self.room = room
        self.active: list[tuple[Path, Entry]] = []
        self.started: list[int] = []
        self.most = 0
        self.closed = False

    def free(self) -> bool:
        return len(self.active) < self.room

    def start(self, directory: Path, entry: Entry) -> None:
        self.active.append((directory, entry))
        self.started.append(entry["seed"])
        self.most = max(self.most, len(self.active))

    def poll(self) -> list[tuple[Entry, Outcome]]:
        ended = [(entry, self.script[entry["seed"]].popleft()) for _, entry in self.active]
        for (directory, entry), (_, outcome) in zip(self.active, ended, strict=True):
            if outcome.kind == "finished":
                run = directory / entry["path"]
                run.mkdir()
                (run / "run.json").write_text(json.dumps({"status": "finished"}))
        self.active.clear()
        return ended

    def stop(self) -> None:
        raise AssertionError("nobody asked")

    def close(self) -> None:
        self.closed = True


def test_killed_runs_are_started_again_failed_ones_reported_and_nothing_stops_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, killed, failed = Outcome("finished"), Outcome("killed", "killed by signal 9"), Outcome("failed", "no motor")
    engine = Scripted({1: [killed, killed, done], 2: [failed], 3: [killed, killed, killed]})
    summary = run_study(make_study("mine", TINY), tmp_path, engine, PlainLines(), retries=2)
    assert engine.started == [1, 1, 1, 2, 3, 3, 3]
    assert engine.closed
    assert [state.status for state in summary.states] == ["finished", "failed", "failed"]
    assert [state.reason for state in summary.failed] == ["no motor", "killed by signal 9"]
    assert not summary.stopped
    out = capsys.readouterr().out
    assert "s2" in next(line for line in out.splitlines() if line.startswith("failed") and "no motor (log" in line)
    # Again: only what is missing.
    again = Scripted({2: [done], 3: [done]}, room=2)
    summary = run_study(make_study("mine", TINY), tmp_path, again, PlainLines(), retries=2)
    assert (again.started, again.most, summary.finished) == ([2, 3], 2, 3)


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    class Stubborn(Scripted):
        """Somebody presses Ctrl-C when it starts a run, and again when it is asked to stop."""

        def start(self, directory: Path, entry: Entry) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def poll(self) -> list[tuple[Entry, Outcome]]:
            return []

        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    engine = Stubborn({})
    with pytest.raises(KeyboardInterrupt):
        run_study(make_study("mine", TINY), tmp_path, engine, PlainLines())
    assert engine.closed
    assert lock_holder(tmp_path) is None


def test_a_process_that_is_killed_is_told_from_one_that_fails(tmp_path: Path) -> None:
    study = make_study("mine", {**TINY, "tasks": ["detent.envs.scripted:Target-v0"]})
    entries = [{**run.entry(), "path": f"runs/{run.id}"} for run in study.runs]
    for name in ("plan", "runs", "logs"):
        (tmp_path / name).mkdir()
    # Without its plan, the run fails at once.
    process = RunProcess(tmp_path, entries[0])
    outcome = None
    while outcome is None:
        outcome = process.advance()
    assert outcome.kind == "failed"
    assert outcome.reason.startswith("detent train: there is no file")
    process = RunProcess(tmp_path, entries[1])
    assert process.advance() is None
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert process.advance() == Outcome("killed", "killed by signal 9 (the system does this when memory runs out)")
    # A run that somebody else works on is not started, and one that was asked to stop before it began never is.
    run = tmp_path / entries[2]["path"]
    run.mkdir()
    lock = acquire_lock(run)
    process = RunProcess(tmp_path, entries[2])
    assert process.advance() is None
    assert process._process is None
    process.stop()
    assert process.advance() == Outcome("stopped")
    release_lock(lock)


def test_a_study_cut_off_in_every_way_ends_with_the_same_results(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    file = write(tmp_path / "pair.toml", steps=6000)
    out = finish(start("run", file, "--out", whole, "--workers", 2))
    assert f"{whole}: 2 finished" in out

    # Ctrl-C: the runs save a checkpoint, and the exit code says so.
    process = start("run", file, "--out", cut, "--workers", 2)
    wait_until(lambda: bool(in_the_middle(cut)), process)
    stopped = in_the_middle(cut)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3, out
    assert "stopped on request; run the same command to resume" in out
    assert {info(cut, run)["status"] for run in stopped} == {"stopped"}

    # kill -9: the runs notice, and let go of their directories.
    process = start("run", file, "--out", cut, "--workers", 2)
    wait_until(lambda: lock_holder(cut) is not None, process)
    report = json.loads(subprocess.run(command("status", cut, "--json"), capture_output=True, check=True).stdout)
    assert report["run_by"].startswith(f"process {process.pid} on ")
    wait_until(lambda: bool(in_the_middle(cut)), process)
    killed = in_the_middle(cut)
    process.kill()
    process.communicate()
    assert lock_holder(cut) is None
    wait_until(lambda: all(lock_holder(cut / "runs" / run) is None for run in killed))
    assert {info(cut, run)["status"] for run in killed} == {"stopped"}

    finish(start("run", file, "--out", cut, "--workers", 2))
    assert results(cut) == results(whole)
    assert all(info(cut, run)["interruptions"][0]["exact"] for run in stopped)
    assert len(info(cut, killed[0])["interruptions"]) >= 1
    # Nothing is left to do, and nothing is done.
    before = {path: path.stat().st_mtime_ns for path in (cut / "runs").rglob("*")}
    assert main(["study", "run", str(file), "--out", str(cut)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (cut / "runs").rglob("*")} == before


def test_a_failed_run_has_a_log_and_the_others_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(
        "mine",
        {
            "tasks": ["detent.envs.scripted:Target-v0"],
            "variants": ["mlp-c"],
            "steps": 200,
            "settings": {"rollout_steps": 32, "env.num_envs": 4, "update.minibatches": 4, "eval.episodes": 1},
            "grid": [{"settings": {"env.kwargs.wings": 2}}, {}],
        },
    )
    summary = run_study(study, tmp_path, LocalEngine(2), PlainLines())
    assert [state.status for state in summary.states] == ["failed", "finished"]
    broken, fine = read_study(tmp_path)["runs"]
    reason, log = summary.states[0].reason or "", summary.states[0].log or ""
    assert "wings" in reason
    assert reason in Path(log).read_text()
    assert failure_path(tmp_path, broken["id"]).exists()
    assert read_state(tmp_path, fine).step == fine["total_steps"] == 384
    assert main(["study", "status", str(tmp_path)]) == 0
    assert f"failed {broken['id']}: detent train: " in capsys.readouterr().out


def test_a_directory_in_use_and_a_wrong_call_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = acquire_lock(tmp_path)
    try:
        assert main(["study", "run", "gym-main", "--out", str(tmp_path)]) == 1
    finally:
        release_lock(lock)
    assert f"{tmp_path} is in use by process {os.getpid()}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    for words, sentence in (
        (["run", "gym-main", "--out", str(tmp_path)], "is not empty and holds no study"),
        (["run", "gym-main", "--out", str(tmp_path / "file")], "cannot be created"),
        (["run", "gym-mian"], "there is no study 'gym-mian'; did you mean gym-main"),
        (["run", "gym-main", "--workers", "-1"], "--workers is -1; it must not be negative"),
        (["run", "gym-main", "--retries", "-1"], "--retries is -1; it must not be negative"),
        (["run", "gym-main", "--address", "there:1"], "--address and --gpus go with --engine ray"),
        (["status", str(tmp_path)], "is not a study directory"),
    ):
        assert main(["study", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_a_dry_run_tells_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", "gym-main", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 101
    assert lines[-1].startswith("100 runs, ")


def test_studies_are_listed_without_those_for_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "studies", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"gym-main", "smoke"} <= set(listed)
    assert "_tiny" not in listed
