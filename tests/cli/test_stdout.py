"""Commands whose output goes into an ASCII terminal, or into a pipe whose reader leaves early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detent.cli import main

TARGET = "detent.envs.scripted:Target-v0"
SMALL = (
    "--steps 256 --threads 1 --rollout-steps 32 --envs 4 --update.minibatches 4 --update.epochs 1 --width 8 "
    "--eval.episodes 2"
)
COMMAND = [sys.executable, "-m", "detent"]


@pytest.mark.parametrize("words", ["--help", "list tasks", "train --help", "train --help-all", "list heads --json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(words: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [*COMMAND, *words.split()], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_failed_says_so_also_when_nobody_reads_its_output() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "list", "--jsn"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 2
    assert "there is no flag --jsn" in done.stderr


def in_ascii(words: str, where: Path) -> str:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, *words.split()], cwd=where, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("ascii")


def test_every_command_prints_to_an_ascii_terminal(tmp_path: Path) -> None:
    trained = in_ascii(f"train {TARGET} {SMALL} --out run", tmp_path)
    assert f"{TARGET} - rn-d - ppo - preset paper" in trained
    assert " +- " in trained, "an evaluation's standard deviation"
    assert f"{TARGET} - rn-d - step" in in_ascii("eval run --episodes 2 --threads 1", tmp_path)
    assert "variance / |mean|^2" in in_ascii("diagnose run", tmp_path)
    assert "detent train HalfCheetah-v4 - detent train --resume RUN" in in_ascii("train --help", tmp_path)
    assert "detent train" in in_ascii("--help", tmp_path)
    assert "rn-d" in in_ascii("list variants", tmp_path)


def test_a_terminal_that_has_the_characters_gets_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "detent train HalfCheetah-v4 · detent train --resume RUN" in capsys.readouterr().out
