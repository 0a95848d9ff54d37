"""What is shown of a study while it runs, on a terminal and in a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from detent.study.directory import RunState
from detent.study.display import LiveTable, PlainLines, clock, counts, played, runs_table, study_left
from detent.study.plan import make_study

STUDY = make_study("mine", {"tasks": ["Ant-v4"], "variants": ["rn-d"]})
STATES = {
    state.id: state
    for state in (
        RunState("done", "finished", 1000, 1000, 250.0, {"return": 12.34, "score": 0.5}),
        RunState("going", "running", 400, 1000, 100.0, {"return": -1.0, "success_once": 0.25}, "process 1 on here"),
        RunState("slow", "running", 0, 1000, 50.0),
        RunState("next", "waiting", 0, 1000),
        RunState("broken", "failed", 100, 1000, 100.0, None, "no motor [sic]", "logs/broken.log"),
    )
}


def test_numbers_of_a_study() -> None:
    assert counts(STATES.values()) == "1 finished, 1 waiting, 1 failed, 2 running"
    # 600 + 1000 + 1000 steps at 100 + 50 steps per second; what failed is not counted on.
    assert study_left(STATES.values()) == pytest.approx(2600 / 150)
    assert study_left([STATES["next"]]) is None
    assert study_left([STATES["done"]]) == 0.0
    assert [played(state) for state in STATES.values()] == ["12.3", "0.25 success", "-", "-", "-"]
    assert (clock(None), clock(3661.4), clock(0)) == ("-", "1:01:01", "0:00:00")
    assert STATES["going"].seconds_left == pytest.approx(6.0)


def test_plain_lines_tell_events_at_once_and_progress_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("detent.study.display.time.monotonic", lambda: now)
    out = io.StringIO()
    lines = PlainLines(Console(file=out, soft_wrap=True, highlight=False))
    lines.start(STUDY, Path("there"), STATES)
    lines.started(STUDY.runs[0].entry())
    lines.update(STATES, {"going", "slow"})
    now = 10.0
    lines.update(STATES, {"going", "slow"})
    lines.finished(STATES["done"])
    lines.failed({"id": "broken"}, "no motor [sic]", Path("logs/broken.log"))
    assert out.getvalue().splitlines() == [
        "study mine in there: 5 runs, 1 finished, 1 waiting, 1 failed, 2 running",
        f"begin {STUDY.runs[0].id}",
        "1 finished, 1 waiting, 1 failed, 2 running; about 0:00:17 left  going 40%  slow 0%",
        "finished done: 1,000 steps, evaluation 12.3",
        "failed broken: no motor [sic] (log logs/broken.log)",
    ]


def test_swept_settings_stand_beside_the_ids_that_hide_them_in_a_hash() -> None:
    study = make_study("mine", {"tasks": ["Ant-v4"], "variants": ["rn-d"], "sweep": {"head": {"bins": [11, 101]}}})
    out = io.StringIO()
    lines = PlainLines(Console(file=out, soft_wrap=True, highlight=False))
    for run in study.runs:
        lines.started(run.entry())
    assert out.getvalue().splitlines() == [
        f"begin {run.id} (head.bins={bins})" for run, bins in zip(study.runs, (11, 101), strict=True)
    ]
    states = [RunState(run.id, "waiting", total_steps=1, swept=run.swept) for run in study.runs]
    Console(file=out, width=120).print(runs_table(states))
    *_, head, first, second = out.getvalue().splitlines()
    assert head.split()[:2] == ["run", "swept"]
    assert first.split()[:2] == [study.runs[0].id, "head.bins=11"]
    assert second.split()[1] == "head.bins=101"


def test_the_live_table_shows_what_is_going_first_and_fits_the_terminal() -> None:
    out = io.StringIO()
    table = LiveTable(Console(file=out, force_terminal=True, width=100, height=9))
    table.start(STUDY, Path("there"), STATES)
    table.update(STATES, {"going", "slow"})
    table.close()
    screen = out.getvalue()
    last = screen[screen.rindex("run ") :]
    shown = [name for name in STATES if f"{name} " in last.replace("about", "")]
    assert shown == ["going", "slow", "broken"]
    assert "40%" in last
    assert "0:00:06" in last
    assert "... and 2 more" in last
    assert "about 0:00:17 left" in last
