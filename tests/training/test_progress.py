"""What a user sees of a run: plain lines in a pipe, a panel on a terminal."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from detent.config import Config, EnvConfig
from detent.envs import VectorEnv
from detent.training import progress
from detent.training.callbacks import RunContext
from detent.training.progress import LivePanel, PipeConsole, PlainLines, describe, evaluation_parts
from detent.training.run_directory import RunLog

# 16 environments x 1024 steps after 1024 steps of warm-up: 12 whole iterations are 197,632 steps.
CONFIG = Config(
    task="Ant-v4",
    steps=190_000,
    seed=7,
    threads=2,
    device="cpu",
    env=EnvConfig(backend="envpool"),
)


class AtStep:
    """The state of a trainer that has taken `step` steps."""

    config = CONFIG
    envs: VectorEnv
    iteration = 0

    def __init__(self, step: int) -> None:
        self.step = step


def run_at(step: int = 0, path: Path | str = "runs/x") -> RunContext:
    return RunContext(AtStep(step), Path(path), None, lambda: 0.0, ("a note",))


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
    others = {"deterministic": result | {"return": 950.0}, "mean": result | {"return": 990.0}}
    return {"step": step, "stochastic": result, **others, "paper_score": paper}


def lines(output: io.StringIO) -> list[str]:
    return output.getvalue().splitlines()


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


def test_one_thread_and_one_environment_are_in_the_singular() -> None:
    alone = replace(CONFIG, threads=1, env=EnvConfig(num_envs=1, backend="gymnasium"))
    assert describe(alone).endswith("· 1 environment (gymnasium) · 1 thread · cpu")


def test_plain_lines_tell_steps_return_speed_and_time_left(plain: tuple[PlainLines, io.StringIO]) -> None:
    shown, file = plain
    run = run_at()
    shown.on_run_start(run)
    shown.on_iteration(run, iteration(1))
    shown.on_checkpoint(run, Path("runs/x/checkpoints/17408"), "best")
    shown.on_run_end(run, "finished")
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
    shown, file = plain
    now = 50.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for number in range(1, 13):
        shown.on_iteration(run_at(), iteration(number))
        now += 4.0
    # Every third iteration is 12 s after the last line; the last of all is always told.
    steps = [line.split()[1] for line in lines(file) if line.startswith("step")]
    assert steps == [f"{1024 + number * 16384:,}/197,632" for number in (1, 4, 7, 10, 12)]


def test_the_last_known_return_stands_where_no_episode_ended(
    plain: tuple[PlainLines, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    shown, file = plain
    for number, total_reward in enumerate((None, -5.0, None), start=1):
        shown.on_iteration(run_at(), iteration(number, total_reward))
    assert [line.split()[3] for line in lines(file) if line.startswith("step")] == ["-", "-5.0", "-5.0"]


def test_an_evaluation_tells_every_readout_with_its_score_and_the_papers() -> None:
    assert "  ".join(evaluation_parts(evaluation(1_000_000))) == (
        "eval at 1,000,000:  sampled 900.0 ± 10.3 (score 0.25)  most probable 950.0 ± 10.3 (score 0.25)  "
        "expected 990.0 ± 10.3 (score 0.25)  paper 0.20"
    )
    assert evaluation_parts(evaluation(5, score=None, paper=None)) == [
        "eval at 5:",
        "sampled 900.0 ± 10.3",
        "most probable 950.0 ± 10.3",
        "expected 990.0 ± 10.3",
    ]
    with_success = evaluation(5, None, None)
    with_success["stochastic"] = with_success["stochastic"] | {"success_once": 0.5, "success_at_end": 0.25}
    assert evaluation_parts(with_success)[1] == "sampled 900.0 ± 10.3, success 0.50 (at end 0.25)"


def test_numbers_that_were_not_finite_are_shown_as_unknown(plain: tuple[PlainLines, io.StringIO]) -> None:
    row = evaluation(5, None, None)
    row["mean"], row["stochastic"] = None, row["stochastic"] | {"return": None}
    assert evaluation_parts(row)[1:] == ["sampled -", "most probable 950.0 ± 10.3", "expected -"]
    shown, file = plain
    shown.on_iteration(run_at(), iteration(1) | {"entropy": None})
    assert lines(file) == ["step 17,408/197,632  return 123.5  kl 0.0123  sps 1000  left 0:03:00"]


def test_brackets_in_names_are_printed_as_they_are(plain: tuple[PlainLines, io.StringIO]) -> None:
    shown, file = plain
    shown.on_message("runs/[bold]x[/]")
    assert lines(file) == ["runs/[bold]x[/]"]


def panel_of(width: int, path: Path | str = "runs/x") -> str:
    file = io.StringIO()
    panel = LivePanel(Console(file=file, force_terminal=True, width=width))
    run = run_at(path=path)
    panel.on_run_start(run)
    panel.on_message("resuming")
    panel.on_iteration(run, iteration(1, None))
    panel.on_iteration(run, iteration(2))
    panel.on_evaluation(run, evaluation(33_792))
    panel.on_checkpoint(run, Path("runs/x/checkpoints/1"), "best")
    panel.on_run_end(run, "finished")
    return file.getvalue()


def test_the_panel_shows_everything_on_a_terminal() -> None:
    shown = panel_of(120, "runs/[/odd]")
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


def test_the_panel_loses_nothing_at_sixty_columns() -> None:
    shown = panel_of(60)
    for text in ("33,792/197,632 steps", "0:02:44 left", "123.5", "entropy", "29.5", "clipped", "value loss", "0.5"):
        assert text in shown, text
    for text in ("sampled 900.0 ± 10.3", "most probable 950.0 ± 10.3", "expected 990.0 ± 10.3", "paper 0.20"):
        assert text in shown, text
    assert "…" not in shown.splitlines()[-3]


def test_the_panel_counts_warm_up_steps_from_the_first_evaluation() -> None:
    file = io.StringIO()
    panel = LivePanel(Console(file=file, force_terminal=True, width=120))
    run = run_at()
    panel.on_run_start(run)
    panel.on_evaluation(run, evaluation(1024))
    panel.on_run_end(run, "finished")
    assert "1,024/197,632 steps" in file.getvalue()


def test_the_panel_of_a_resumed_run_shows_its_step_and_last_return(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run", CONFIG)
    for number, total_reward in ((1, 77.5), (2, None)):
        log.append("metrics", iteration(number, total_reward))
    log.close()
    file = io.StringIO()
    panel = LivePanel(Console(file=file, force_terminal=True, width=120))
    run = run_at(33_792, tmp_path / "run")
    panel.on_run_start(run)
    panel.on_run_end(run, "stopped")
    assert "33,792/197,632 steps" in file.getvalue()
    assert "77.5" in file.getvalue()


def test_the_panel_gives_the_cursor_back() -> None:
    assert panel_of(80).count("\x1b[?25h") == 1


def test_a_pipe_gets_lines_and_a_terminal_the_panel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    shown = progress.progress()
    assert isinstance(shown, PlainLines)
    shown.on_message("x" * 300)
    assert capsys.readouterr().out == "x" * 300 + "\n", "no line is wrapped or coloured"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(progress.progress(), LivePanel)


def test_a_reader_who_leaves_silences_the_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving, sending = os.pipe()
    os.close(receiving)
    with (tmp_path / "stdout").open("w") as stdout, os.fdopen(sending, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", stdout)
        shown = PlainLines(PipeConsole(file=pipe))
        shown.on_message("nobody reads this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())
        shown.on_message("nor this")
        print("and what the command prints in the end does no harm")
    assert (tmp_path / "stdout").read_text() == ""
