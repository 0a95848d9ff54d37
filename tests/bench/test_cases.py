"""Small benchmarks for real; what they measure is not judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from detent.bench import scheduling
from detent.bench.cases import run_case, run_table, run_under_load
from detent.bench.scheduling import Worker
from detent.bench.show import print_report
from detent.cli import main
from detent.cli.bench import PAPER_TASKS, Bench
from detent.config import Config
from detent.config.presets import configure
from detent.training.run import resolve


def small(variant: str = "rn-d", threads: int = 2, bins: int = 5) -> Config:
    settings = {
        "threads": threads,
        "rollout_steps": 64,
        "env.num_envs": 2,
        "update.minibatches": 2,
        "update.epochs": 2,
        "actor.width": 16,
        "head.bins": bins,
        "device": "cpu",
    }
    return resolve(configure("Hopper-v4", variant=variant, overrides=settings))


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "LEAST_SECONDS", 0.01)


def assert_spread(measured: dict[str, Any], repeats: int) -> None:
    assert set(measured) == {"median", "low", "high", "rounds"}
    assert measured["low"] <= measured["median"] <= measured["high"]
    assert len(measured["rounds"]) == repeats
    assert all(map(math.isfinite, measured["rounds"]))


def test_a_case_reports_everything_and_its_numbers_fit_together(capsys: pytest.CaptureFixture[str]) -> None:
    # One thread: two that spin, the peer's default, crawl while other tests share the cores.
    config = small(threads=1)
    said: list[str] = []
    report = run_case(config, repeats=2, full=False, say=said.append)
    warming = "  warming up: detent, limit, sb3"
    assert said == ["  peak memory", warming, "  round 1 of 2", "  round 2 of 2"]
    assert json.loads(json.dumps(report)).keys() == report.keys()
    assert (report["task"], report["variant"], report["threads"]) == ("Hopper-v4", "rn-d", 1)
    assert report["processes"] == config.update.processes
    assert report["slice"] == {"rollout_steps": 64, "minibatches": 2, "epochs": 2}
    speeds = report["steps_per_second"]
    assert set(speeds) == {"detent", "sb3", "limit"}
    for measured in (*speeds.values(), report["times_sb3"], report["share_of_limit"], report["diagnostics_cost"]):
        assert_spread(measured, 2)
    first = {name: speed["rounds"][0] for name, speed in speeds.items()}
    assert report["times_sb3"]["rounds"][0] == pytest.approx(first["detent"] / first["sb3"])
    assert report["share_of_limit"]["rounds"][0] == pytest.approx(first["detent"] / first["limit"])
    assert set(report["split"]) == {
        *("simulate", "act", "prepare", "forward and backward", "optimizer", "diagnostics", "other"),
    }
    assert sum(report["split"].values()) == pytest.approx(1)
    assert all(share > 0 for share in report["split"].values())
    assert 0 < report["diagnostics_cost"]["median"] < 1
    assert report["compiled_gain"] is None
    seconds = report["limit"]["seconds"]
    total = sum(part["rounds"][0] for part in seconds.values())
    assert first["limit"] == pytest.approx(config.batch_size / total)
    assert 50e6 < report["peak_memory_bytes"] < 5e9
    print_report({"cases": [report], "machine": {"cores": 2, "system": "here"}, "repeats": 2})
    printed = capsys.readouterr().out
    for word in ("Stable-Baselines3", "the machine's limit", "forward and backward", "composed of slices", "MB"):
        assert word in printed


@pytest.mark.slow
def test_a_compiled_contender_stands_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_case(small("mlp-c", threads=1), repeats=1, full=False, say=print, compiled=True)
    speeds = {name: speed["median"] for name, speed in report["steps_per_second"].items()}
    assert report["compiled_gain"]["median"] == pytest.approx(speeds["compiled"] / speeds["detent"])
    print_report({"cases": [report], "machine": {"cores": 2, "system": "here"}, "repeats": 1})
    assert "--update.compile" in capsys.readouterr().out


def test_under_load_it_reports_what_is_kept_and_what_one_thread_runs_gain(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    report = run_under_load(small("mlp-c"), repeats=1, full=True, say=said.append)
    assert said == ["  warming up: all threads, one thread 0, one thread 1", "  round 1 of 1"]
    assert (report["measured"], report["threads"], report["processes"]) == ("whole iterations", 2, 2)
    speeds = {name: speed["median"] for name, speed in report["steps_per_second"].items()}
    assert report["kept_under_load"]["median"] == pytest.approx(speeds["beside a busy core"] / speeds["quiet"])
    assert report["side_by_side_gain"]["median"] == pytest.approx(speeds["side by side"] / speeds["quiet"])
    print_report({"under_load": [report], "machine": {"cores": 2, "system": "here"}, "repeats": 1})
    assert "beside a busy core" in capsys.readouterr().out


def test_a_table_stands_beside_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    configs = {bins: [small(bins=int(bins))] for bins in ("11", "21")}
    report = run_table("bins", configs, 1, False, said.append)
    assert said == ["table bins, task 1 of 1: Hopper-v4", "  warming up: 11, 21", "  round 1 of 1"]
    assert {bins: row["paper"] for bins, row in report["rows"].items()} == {"11": 1789, "21": 1342}
    for row in report["rows"].values():
        assert row["by_task"]["Hopper-v4"] == row["steps_per_second"]
        assert_spread(row["steps_per_second"], 1)
    print_report(report | {"machine": {"cores": 2, "system": "here"}, "repeats": 1})
    assert "1789" in capsys.readouterr().out


def test_the_command_says_which_case_it_measures_and_keeps_stdout_for_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(config: Config, repeats: int, full: bool, say: Callable[[str], None], compiled: bool) -> dict[str, Any]:
        say("  round 1 of 1")
        return {}

    monkeypatch.setattr("detent.bench.cases.run_case", measure)
    assert main(["bench", "--json", "--repeats", "1"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cases"] == [{}] * 4
    assert out.count("\n") == 1
    assert err.startswith("case 1 of 4: mlp-c on HalfCheetah-v4, paper\n  round 1 of 1\ncase 2 of 4: rn-d on ")


def test_a_contender_that_fails_is_named_with_its_last_words() -> None:
    worker = Worker("sb3", Config(task="NoSuchTask-v0", threads=1))
    try:
        with pytest.raises(RuntimeError, match=r"measuring sb3 on NoSuchTask-v0 failed: .*NoSuchTask"):
            worker.measure()
    finally:
        worker.close()


def test_the_default_cases_and_those_that_flags_choose() -> None:
    assert [case[:2] for case in Bench().cases()] == [
        ("HalfCheetah-v4", "mlp-c"),
        ("HalfCheetah-v4", "rn-d"),
        ("Humanoid-v4", "rn-d"),
        ("HalfCheetah-v4", "rn-d"),
    ]
    assert Bench(variant="rn-c").cases() == [("HalfCheetah-v4", "rn-c", "paper")]
    assert Bench(task="Ant-v4", preset="fast").cases() == [("Ant-v4", "rn-d", "fast")]


def test_the_tables_have_the_papers_rows() -> None:
    bins = Bench().rows("bins")
    assert [int(row) for row in bins] == [11, 21, 41, 61, 101, 201, 401, 801, 1001]
    assert {(config.task, config.head.bins) for [config] in bins.values()} == {("Humanoid-v4", int(k)) for k in bins}
    variants = Bench().rows("variants")
    assert set(variants) == {"rn-d", "rn-c", "mlp-d", "mlp-c"}
    assert all([config.task for config in configs] == list(PAPER_TASKS) for configs in variants.values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--repeats 0", "--repeats is 0; it must be at least 1"),
        ("--threads -1", "--threads is -1; it must not be negative"),
        ("--variant rn-x", "there is no variant 'rn-x'; did you mean"),
        ("--preset papre", "there is no preset 'papre'; did you mean paper"),
        ("--task NoSuchTask-v0", "NoSuchTask-v0"),
        ("--table bins --variant rn-c", "leave --variant out"),
        ("--table bins --under-load", "--table and --under-load are different measurements; leave all but one out"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
