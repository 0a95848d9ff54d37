"""What a user sees of a run: plain lines in a pipe, a panel on a terminal."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from detent.config import Config, EnvConfig
from detent.training import progress
from detent.training.progress import (
    LivePanel,
    PipeConsole,
    PlainLines,
    Reporter,
    Silent,
    describe,
    evaluation_line,
    make_reporter,
)

# 16 environments x 1024 steps after 1024 steps of warm-up: 12 whole iterations are 197,632 steps.
CONFIG = Config(
    task="Ant-v4",
    steps=190_000,
    seed=7,
    threads=2,
    device="cpu",
    env=EnvConfig(backend="envpool"),
)


def iteration(number: int, total_reward: float | None = 123.45, sps: float = 1000.0) -> dict[str, Any]:
    return {
        "step": 1024 + number * 16384,
        "iteration": number,
        "return": total_reward,
        "kl": 0.01234,
        "entropy": 29.5,
        "clip_fraction": 0.1,
        "value_loss": 0.5,
        "time/sps": sps,
    }


def evaluation(step: int, score: float | None = 0.25, paper: float | None = 0.2) -> dict[str, Any]:
    result = {"return": 900.04, "std": 10.26, "score": score}
    return {"step": step, "stochastic": result, "deterministic": result | {"return": 950.0}, "paper_score": paper}


def lines(reporter_output: io.StringIO) -> list[str]:
    return reporter_output.getvalue().splitlines()


@pytest.fixture
def plain() -> tuple[PlainLines, io.StringIO]:
    file = io.StringIO()
    return PlainLines(Console(file=file, soft_wrap=True, highlight=False)), file


def test_the_first_line_says_what_was_chosen_and_how_steps_were_rounded() -> None:
    assert describe(CONFIG) == (
        "Ant-v4 · rn-d · ppo · preset paper · seed 7 · "
        "190,000 steps, rounded up to 197,632 (1,024 random ones and whole iterations of 16,384) · "
        "16 environments (envpool) · 2 threads · cpu"
    )
    assert "· 197,632 steps ·" in describe(Config(steps=197_632))


def test_plain_lines_tell_steps_return_speed_and_time_left(plain: tuple[PlainLines, io.StringIO]) -> None:
    reporter, file = plain
    reporter.start(CONFIG, Path("runs/x"), ("a note",))
    reporter.iteration(iteration(1), 1.0)
    reporter.checkpoint(Path("runs/x/checkpoints/17408"), "best")
    reporter.close()
    # (197,632 - 17,408) / 1000 = 180 s.
    assert lines(file) == [
        describe(CONFIG),
        "run directory runs/x",
        "a note",
        "step 17,408/197,632  return 123.5  kl 0.0123  entropy 29.50  sps 1000  left 0:03:00",
        "checkpoint runs/x/checkpoints/17408 (best)",
    ]


def test_plain_lines_come_every_few_seconds_and_at_the_end(
    plain: tuple[PlainLines, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, file = plain
    reporter.start(CONFIG, Path("runs/x"), ())
    now = 50.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for number in range(1, 13):
        reporter.iteration(iteration(number), 0.0)
        now += 4.0
    # Every third iteration is 12 s after the last line; the last of all is always told.
    steps = [line.split()[1] for line in lines(file) if line.startswith("step")]
    assert steps == [f"{1024 + number * 16384:,}/197,632" for number in (1, 4, 7, 10, 12)]


def test_the_last_known_return_stands_where_no_episode_ended(
    plain: tuple[PlainLines, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    reporter, file = plain
    reporter.start(CONFIG, Path("runs/x"), ())
    for number, total_reward in enumerate((None, -5.0, None), start=1):
        reporter.iteration(iteration(number, total_reward), 0.0)
    assert [line.split()[3] for line in lines(file) if line.startswith("step")] == ["-", "-5.0", "-5.0"]


def test_an_evaluation_is_one_line_with_score_and_the_papers() -> None:
    assert evaluation_line(evaluation(1_000_000)) == (
        "eval at 1,000,000:  sampled 900.0 ± 10.3 (score 0.25)  most probable 950.0 ± 10.3 (score 0.25)  paper 0.20"
    )
    assert evaluation_line(evaluation(5, score=None, paper=None)) == (
        "eval at 5:  sampled 900.0 ± 10.3  most probable 950.0 ± 10.3"
    )
    with_success = evaluation(5, None, None)
    with_success["stochastic"] = with_success["stochastic"] | {"success_once": 0.5, "success_at_end": 0.25}
    assert "sampled 900.0 ± 10.3, success 0.50 (at end 0.25)  most probable" in evaluation_line(with_success)


def test_brackets_in_names_are_printed_as_they_are(plain: tuple[PlainLines, io.StringIO]) -> None:
    reporter, file = plain
    reporter.message("runs/[bold]x[/]")
    assert lines(file) == ["runs/[bold]x[/]"]


def test_the_panel_shows_everything_on_a_terminal() -> None:
    file = io.StringIO()
    panel = LivePanel(Console(file=file, force_terminal=True, width=120))
    panel.start(CONFIG, Path("runs/[/odd]"), ("a note",))
    panel.message("resuming")
    panel.iteration(iteration(1, None), 1.0)
    panel.iteration(iteration(2), 1.0)
    panel.evaluation(evaluation(33_792))
    panel.checkpoint(Path("runs/x/checkpoints/1"), "best")
    panel.close()
    shown = file.getvalue()
    for text in (
        "a note",
        "resuming",
        "runs/[/odd]",
        "33,792/197,632 steps",
        "123.5",
        "1000",
        "0:02:44 left",
        "paper 0.20",
    ):
        assert text in shown, text
    assert "\x1b[" in shown, "drawn in place"


def test_the_panel_closes_before_anything_happened() -> None:
    LivePanel(Console(file=io.StringIO(), force_terminal=True)).close()


def test_a_pipe_gets_lines_and_a_terminal_the_panel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    reporter = make_reporter()
    assert isinstance(reporter, PlainLines)
    reporter.message("x" * 300)
    assert capsys.readouterr().out == "x" * 300 + "\n", "no line is wrapped or coloured"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_reporter(), LivePanel)


def test_a_reader_who_leaves_silences_the_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving, sending = os.pipe()
    os.close(receiving)
    with (tmp_path / "stdout").open("w") as stdout, os.fdopen(sending, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", stdout)
        reporter = PlainLines(PipeConsole(file=pipe))
        reporter.message("nobody reads this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())
        reporter.message("nor this")
        print("and what the command prints in the end does no harm")
    assert (tmp_path / "stdout").read_text() == ""


def test_as_a_library_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    reporter: Reporter = Silent()
    reporter.start(CONFIG, Path("runs/x"), ("a note",))
    reporter.iteration(iteration(1), 1.0)
    reporter.evaluation(evaluation(1))
    reporter.checkpoint(Path("runs/x"), "best")
    reporter.message("text")
    reporter.close()
    assert capsys.readouterr().out == ""
