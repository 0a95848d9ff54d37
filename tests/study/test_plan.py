"""Study files: the runs they add up to, what names a run, and what is refused in which words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from detent.config import Config
from detent.config.io import load_config, override
from detent.config.presets import configure, table
from detent.errors import ConfigError
from detent.study.directory import plan_path, write_study
from detent.study.plan import Study, flat, load_study, make_study, run_id, shipped

GYM = ["Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Humanoid-v4", "Walker2d-v4"]
FOUR = ["mlp-c", "mlp-d", "rn-c", "rn-d"]
NETWORKS = ["bronet-d", "mlp-d", "rn-d", "simba-d", "simba-v2-d"]
BINS = [11, 21, 41, 61, 101, 201, 401, 801, 1001]
SMALL: dict[str, Any] = {"tasks": ["Ant-v4"], "variants": ["rn-d"]}
MANISKILL = ["algorithms", "bins", "loss-swap", "maniskill-rgb", "maniskill-state", "off-policy", "width"]
"""Shipped studies with ManiSkill tasks."""


def values(study: Study, name: str) -> list[Any]:
    """The values a setting takes over a study's runs, each once, in order."""
    return sorted({flat(dataclasses.asdict(run.config))[name] for run in study.runs})


def test_a_study_is_the_product_of_its_axes_first_seeds_first() -> None:
    study = make_study(
        "mine",
        {
            "tasks": ["Ant-v4", "Hopper-v4"],
            "variants": ["rn-d", "mlp-c"],
            "algos": ["ppo", "spo"],
            "seeds": [7, 3],
            "steps": 100_000,
            "settings": {"update": {"epochs": 5}},
            "sweep": {"actor": {"width": [64, 128]}},
        },
    )
    assert len(study.runs) == len({run.id for run in study.runs}) == 2 * 2 * 2 * 2 * 2
    assert [run.config.seed for run in study.runs] == [7] * 16 + [3] * 16
    first = study.runs[0]
    assert first.config == configure(
        "Ant-v4",
        variant="rn-d",
        overrides={"seed": 7, "steps": 100_000, "threads": 1, "update.epochs": 5, "actor.width": 64},
    )
    assert first.overrides == {"update.epochs": 5, "actor.width": 64}
    assert values(study, "actor.width") == [64, 128]
    assert first.entry() == {
        "id": first.id,
        "path": f"runs/{first.id}",
        "task": "Ant-v4",
        "variant": "rn-d",
        "algo": "ppo",
        "preset": "paper",
        "seed": 7,
        "steps": 100_000,
        # 64 warm-up steps of 16 environments, then iterations of 16 x 1024: 7 of them reach 100,000.
        "total_steps": 1024 + 7 * 16384,
        "threads": 1,
        "baseline": False,
        "overrides": {"update.epochs": 5, "actor.width": 64},
        "swept": {"actor.width": 64},
    }


def test_a_grid_adds_to_what_stands_above_it_and_a_run_is_there_once() -> None:
    study = make_study(
        "mine",
        {
            "tasks": ["Ant-v4"],
            "settings": {"eval.episodes": 5},
            "grid": [
                {"variants": ["rn-d"], "sweep": {"head.bins": [11, 41]}, "settings": {"update.epochs": 3}},
                {"variants": ["rn-d"], "settings": {"update.epochs": 3}},
                {"variants": ["mlp-c", "td3"], "algos": ["ppo", "spo"], "baseline": True},
            ],
        },
    )
    found = [(run.config.variant, run.config.algo, run.overrides, run.baseline) for run in study.runs]
    assert found == [
        ("rn-d", "ppo", {"eval.episodes": 5, "update.epochs": 3, "head.bins": 11}, False),
        ("rn-d", "ppo", {"eval.episodes": 5, "update.epochs": 3, "head.bins": 41}, False),
        ("mlp-c", "ppo", {"eval.episodes": 5}, True),
        ("mlp-c", "spo", {"eval.episodes": 5}, True),
        ("td3", "td3", {"eval.episodes": 5}, True),
    ]


def test_an_id_says_what_the_run_is_and_changes_with_all_that_changes_its_result() -> None:
    config = configure("Ant-v4", overrides={"threads": 1})
    name, _, digest = run_id(config).rpartition("-")
    assert name == "ant-v4-rn-d-ppo-s1"
    assert len(digest) == 8
    assert set(digest) <= set("0123456789abcdef")
    others: list[dict[str, Any]] = [
        {"seed": 2},
        {"steps": 1_000_000},
        {"threads": 2},
        {"device": "cuda"},
        {"env": {"kwargs": {"reset_noise_scale": 0.2}}},
        {"env": {"backend": "gymnasium"}},
        {"head": {"bins": 11}},
        {"checkpoint": {"interval": 500_000}},
        {"eval": {"interval": 500_000}},
    ]
    digests = {run_id(override(config, change)).rpartition("-")[2] for change in others}
    assert len(digests | {digest}) == 1 + len(others)
    without_effect: list[dict[str, Any]] = [{"tensorboard": True}, {"checkpoint": {"keep": 1}}]
    for change in without_effect:
        assert run_id(override(config, change)) == run_id(config)
    assert run_id(configure("my_envs.arms:Arm/Left-v0")).startswith("arm-left-v0-rn-d-ppo-s1-")


def test_ids_stay_when_a_later_version_adds_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_id(configure("Ant-v4", overrides={"threads": 1}))

    @dataclasses.dataclass(frozen=True)
    class Later(Config):
        brand_new: int = 3

    monkeypatch.setattr("detent.study.plan.Config", Later)
    monkeypatch.setattr("detent.config.presets.Config", Later)
    assert run_id(configure("Ant-v4", overrides={"threads": 1})) == before
    assert run_id(configure("Ant-v4", overrides={"threads": 1, "brand_new": 4})) != before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"task": ["Ant-v4"]}, "unknown key 'task'; did you mean tasks?"),
        ({"grid": [{"sweeps": {}}]}, "unknown key 'sweeps'; did you mean sweep or"),
        ({"tasks": []}, "'tasks' is empty; it needs at least one entry"),
        ({"variants": []}, "'variants' is empty; it needs at least one entry"),
        ({"seeds": []}, "'seeds' is empty; it needs at least one entry"),
        ({"sweep": {"head.bins": []}}, "'head.bins' is empty; it needs at least one entry"),
        ({"seeds": 5}, "'seeds' must be a list of whole numbers; found 5"),
        ({"seeds": [True]}, "'seeds' must be a list of whole numbers; found [True]"),
        ({"tasks": "Ant-v4"}, "'tasks' must be a list of names; found 'Ant-v4'"),
        ({"tasks": ["Ant-v4", "Ant-v4"]}, "'tasks' names 'Ant-v4' twice"),
        ({"tasks": ["Ant-v44"]}, "unknown task 'Ant-v44'; did you mean Ant-v4"),
        ({"tasks": ["no_such_module:Arm-v0"]}, "unknown task 'no_such_module:Arm-v0': the module 'no_such_module' of"),
        ({"variants": ["rn-x"]}, "there is no variant 'rn-x'; did you mean"),
        ({"algos": ["ppp"]}, "there is no algo 'ppp'; did you mean"),
        ({"preset": "papr"}, "there is no preset 'papr'; did you mean paper?"),
        ({"settings": {"ppo": {"clap": 1}}}, "unknown setting 'ppo.clap'; did you mean clip?"),
        ({"settings": {"update.epochs": 0}}, "update.epochs is 0; it must be at least 1"),
        ({"settings": {"seed": 3}}, "'seed' cannot be set in a study; use 'seeds'"),
        ({"settings": {"threads": 0}}, "threads is 0 (all cores), which is not the same on every machine"),
        ({"settings": 3}, "'settings' must be a table; found 3"),
        ({"steps": 6_000_000}, "goes past schedule_steps"),
        ({"steps": "many"}, "steps is 'many'; it must be int"),
        ({"grid": {}}, "'grid' must be tables: [[grid]]"),
        ({"baseline": 1}, "'baseline' must be true or false; found 1"),
        ({"description": 1}, "'description' must be text; found 1"),
        ({"variants": ["td3"], "sweep": {"head.bins": [11]}}, "the algorithm is td3, which takes no head.* settings"),
    ],
)
def test_a_wrong_study_is_refused_in_a_sentence(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_study("mine", {**SMALL, **content})
    assert str(caught.value).startswith("study 'mine': ")
    assert sentence in str(caught.value)


def test_a_study_is_a_file_or_a_shipped_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('tasks = ["Pendulum-v1"]\nvariants = ["rn-d"]\n')
    study = load_study(str(path))
    assert (study.name, [run.config.task for run in study.runs]) == ("mine", ["Pendulum-v1"])
    with pytest.raises(ConfigError, match=r"there is no study 'gym-mian'; did you mean gym-main"):
        load_study("gym-mian")
    with pytest.raises(ConfigError, match="there is no file"):
        load_study(str(tmp_path / "other.toml"))
    path.write_text("tasks = [")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_study(str(path))


def test_what_is_written_down_is_the_study(tmp_path: Path) -> None:
    study = load_study("runtime")
    write_study(tmp_path, study)
    again = make_study("runtime", load_study(str(tmp_path / "study.toml")).source())
    assert again == study
    # The machine went down while it was written.
    plan_path(tmp_path, study.runs[0].id).write_text("")
    write_study(tmp_path, study)
    for run in study.runs[:3]:
        assert load_config(plan_path(tmp_path, run.id)) == run.config


def test_shipped_studies_say_what_they_are_and_what_they_cite() -> None:
    named = set(shipped())
    assert named == set(MANISKILL) | {
        "actors",
        "actors-small",
        "many-bins",
        "many-bins-small",
        "components",
        "critics",
        "critics-small",
        "gradient-variance",
        "gym-main",
        "gym-small",
        "networks",
        "networks-small",
        "runtime",
        "smoke",
    }
    for name in named:
        content = table(f"studies/{name}")
        assert content["description"], name
        beyond_the_paper = name == "smoke" or name.startswith(("actors", "critics", "many-bins", "networks"))
        assert beyond_the_paper or "figure" in content["cites"] or "table" in content["cites"], name
    assert load_study("_tiny").runs


@pytest.mark.parametrize(
    ("name", "runs", "axes"),
    [
        ("gym-main", 5 * 4 * 5, {"task": GYM, "variant": FOUR, "seed": [1, 2, 3, 4, 5], "steps": [5_000_000]}),
        ("gradient-variance", 5 * 4 * 5, {"task": GYM, "variant": FOUR}),
        ("components", 5 * 4 * 5, {"task": GYM, "variant": ["layernorm-d", "plain-d", "residual-d", "rn-d"]}),
        ("runtime", (9 + 5 * 4 - 1) * 5, {"task": GYM, "variant": FOUR, "head.bins": BINS}),
        ("networks", 5 * 5 * 5, {"task": GYM, "variant": NETWORKS, "steps": [5_000_000]}),
        ("networks-small", 5 * 2, {"task": ["HalfCheetah-v4"], "variant": NETWORKS, "steps": [200_000]}),
        (
            "gym-small",
            3 * 4 * 3,
            {"variant": FOUR, "seed": [1, 2, 3], "steps": [1_000_000], "schedule_steps": [5_000_000]},
        ),
    ],
)
def test_shipped_gymnasium_studies_have_their_tasks_and_variants(
    name: str, runs: int, axes: dict[str, list[Any]]
) -> None:
    study = load_study(name)
    assert len(study.runs) == runs
    for axis, expected in axes.items():
        assert values(study, axis) == expected
    assert values(study, "threads") == [1]


@pytest.mark.parametrize(("name", "runs", "steps"), [("critics", 5 * 3 * 5, 1_000_000), ("critics-small", 12, 200_000)])
def test_shipped_studies_of_critics_differ_in_the_critic(name: str, runs: int, steps: int) -> None:
    study = load_study(name)
    assert len(study.runs) == runs
    assert values(study, "critic.head") == ["hl-gauss", "scalar", "two-hot"]
    assert values(study, "steps") == [steps]
    assert values(study, "schedule_steps") == [1_000_000]
    assert values(study, "preset") == ["fast"]


@pytest.mark.parametrize(
    ("name", "runs", "axes"),
    [
        ("maniskill-state", 10 * 4 * 5, {"variant": FOUR, "env.obs": ["state"]}),
        ("maniskill-rgb", 5 * 4 * 5, {"variant": FOUR, "env.obs": ["rgb+state"]}),
        ("algorithms", 15 * 4 * 3 * 5, {"variant": FOUR, "algo": ["ppo", "spo", "trpo"]}),
        ("loss-swap", 2 * 3 * 5, {"variant": ["loss-swap", "rn-c", "rn-d"]}),
        ("width", 2 * 4 * 5, {"actor.width": [64, 128, 256, 512]}),
        ("bins", 2 * (2 * 9 + 2) * 5, {"variant": ["mlp-c", "mlp-d", "rn-d", "td3"], "head.bins": BINS}),
        ("off-policy", 2 * 3 * 5, {"variant": ["mlp-c", "rn-d", "td3"]}),
    ],
)
def test_shipped_studies_with_maniskill_tasks_are_the_papers(name: str, runs: int, axes: dict[str, list[Any]]) -> None:
    study = load_study(name)
    assert len(study.runs) == runs
    for axis, expected in axes.items():
        assert values(study, axis) == expected
