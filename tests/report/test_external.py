"""Curves from elsewhere come in as CSV; what is wrong in the file is told by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from detent.errors import ConfigError
from detent.report import figures, load
from detent.report.external import read_external

GOOD = """task,variant,seed,step,score,hours
Ant-v4,tdmpc2,1,200,0.4,2.0
Ant-v4,tdmpc2,1,0,0.0,0.0
Ant-v4,tdmpc2,2,0,0.1,0.0
"""


def write(path: Path, text: str) -> Path:
    file = path / "curves.csv"
    file.write_text(text)
    return file


def test_each_task_variant_and_seed_is_a_run_in_order_of_steps(tmp_path: Path) -> None:
    first, second = read_external(write(tmp_path, GOOD))
    assert (first.task, first.variant, first.seed, first.status) == ("Ant-v4", "tdmpc2", 1, "external")
    assert first.at.tolist() == [0, 200]
    assert first.scores.tolist() == [0.0, 0.4]
    assert first.hours.tolist() == [0.0, 2.0]
    assert (second.seed, second.scores.tolist()) == (2, [0.1])


def test_returns_are_normalized_and_seconds_become_hours(tmp_path: Path) -> None:
    text = "task,variant,seed,step,return,seconds\nAnt-v4,x,1,10,1935.856,1800\nPendulum-v1,x,1,10,-5,0\n"
    ant, other = read_external(write(tmp_path, text))
    # Halfway between the random -70.288 and TD3's 3942.
    assert (ant.scores.tolist(), ant.hours.tolist()) == ([pytest.approx(0.5)], [0.5])
    assert (other.measure, other.scores.tolist()) == ("return", [-5.0])


def test_without_a_time_there_are_no_hours(tmp_path: Path) -> None:
    (run,) = read_external(write(tmp_path, "task,variant,seed,step,score\nAnt-v4,x,1,10,0.5\n"))
    assert np.isnan(run.hours).all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "lacks task, variant, seed, step"),
        ("task,variant,step,score\n", "lacks seed"),
        ("task,variant,seed,step\n", "exactly one of score and return"),
        ("task,variant,seed,step,score,return\n", "exactly one of score and return"),
        ("task,variant,seed,step,score\n", "has no rows"),
        ("task,variant,seed,step,score\nAnt-v4,x,1,10,abc\n", "line 2 of .*score is 'abc'; it must be a number"),
        ("task,variant,seed,step,score\nAnt-v4,x,1,10,nan\n", "score is 'nan'"),
        ("task,variant,seed,step,score\nAnt-v4,x,1,10,1\nAnt-v4,x,1\n", "line 3 of .* fewer columns"),
        ("task,variant,seed,step,score\nAnt-v4,x,1,10,1,2\n", "line 2 of .* more columns"),
        ("task,variant,seed,step,score\n,x,1,10,1\n", "names no task"),
        ("task,variant,seed,step,score\nAnt-v4,x,1,-10,1\n", "must not be negative"),
        ("task,variant,seed,step,score,hours,seconds\n", "one of them is enough"),
    ],
)
def test_a_malformed_file_is_refused_by_line(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_external(write(tmp_path, text))


def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_external(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        read_external(tmp_path / "binary.csv")


def test_external_curves_stand_in_the_figures_of_their_task(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    make_run(tmp_path / "runs" / "one", [0.0, 1.0])
    drawn = figures(load(tmp_path / "runs", external=[write(tmp_path, GOOD)]))
    (panel,) = drawn["tasks-ppo"].panels
    assert {series.key for series in panel.series if series.style == "solid"} == {"rn-d", "tdmpc2"}
    (panel,) = drawn["wall-clock"].panels
    assert "tdmpc2" in {series.key for series in panel.series}
