"""The presets are the paper's table, the authors' configuration where it differs, and one for the impatient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from detent.config import Config, presets, validate
from detent.config.io import to_dict
from detent.config.presets import PRESETS, configure, merged, nested, require_used, table
from detent.errors import ConfigError
from detent.models.networks import make_trunk

VARIANTS = ("rn-d", "rn-c", "mlp-d", "mlp-c")

# The paper's table "Default PPO hyperparameters", column Gym, row by row.
PAPER_TABLE = {
    "advantage.gamma": 0.99,
    "advantage.gae_lambda": 0.95,
    "ppo.clip": 0.2,
    "update.value_coef": 0.5,
    "update.entropy_coef": 0.0,
    "update.max_grad_norm": 0.5,
    "update.epochs": 10,
    "update.minibatches": 64,
    "update.normalize_advantages": True,
    "env.num_envs": 16,
    "rollout_steps": 1024,
    "steps": 5_000_000,
    "update.learning_rate": 3e-4,
    "update.weight_decay": 1e-5,
    "critic.kind": "mlp",
    "critic.width": 64,
    "critic.activation": "tanh",
    "critic.depth": 1,
}
PAPER_ACTORS: dict[str, dict[str, Any]] = {
    "mlp": {"actor.width": 256, "actor.activation": "tanh", "actor.depth": 2},
    "rn": {"actor.width": 256, "actor.depth": 2},
}
# What the table leaves open, from the released code: NOTES.md, "Where table, text and released code disagree".
RELEASED_CODE = {
    "update.adam_eps": 1e-5,
    "update.anneal": True,
    "update.value_clip": 0.2,
    "update.target_kl": 0.0,
    "normalize.observation": True,
    "normalize.reward": True,
    "normalize.clip": 10.0,
    "head.log_std": "state-independent",
    "head.log_std_init": 0.0,
}


def flat(values: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and key != "kwargs":
            yield from flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def settings(config: Config) -> dict[str, Any]:
    return dict(flat(to_dict(config)))


def differences(left: Config, right: Config) -> dict[str, Any]:
    """Settings of `right` that `left` has otherwise."""
    return {key: value for key, value in settings(right).items() if settings(left)[key] != value}


def test_the_defaults_of_the_dataclasses_are_the_paper_preset() -> None:
    assert configure("HalfCheetah-v4") == Config(task="HalfCheetah-v4")
    assert configure("some.module:Own-v0") == Config(task="some.module:Own-v0"), "other tasks are treated alike"


@pytest.mark.parametrize("variant", VARIANTS)
def test_paper_has_every_value_of_the_papers_table(variant: str) -> None:
    expected: dict[str, Any] = {**PAPER_TABLE, **RELEASED_CODE, **PAPER_ACTORS[variant.split("-")[0]]}
    expected |= {"head.bins": 41, "head.mean": "plain", "schedule_steps": 5_000_000}
    found = settings(configure("Ant-v4", variant=variant))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_authors_differs_where_the_released_code_does(variant: str) -> None:
    paper, authors = configure("Ant-v4", variant=variant), configure("Ant-v4", preset="authors", variant=variant)
    assert differences(paper, authors) == {
        "preset": "authors",
        "update.weight_decay": 0.0,
        "critic.depth": 2,
        "head.mean": "squashed",
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_fast_updates_more_often_on_smaller_batches(variant: str) -> None:
    paper, fast = configure("Ant-v4", variant=variant), configure("Ant-v4", preset="fast", variant=variant)
    assert differences(paper, fast) == {
        "preset": "fast",
        "steps": 1_000_000,
        "schedule_steps": 1_000_000,
        "rollout_steps": 128,
        "update.minibatches": 32,
    }
    assert fast.batch_size // fast.update.minibatches == 64


@pytest.mark.parametrize("preset", PRESETS)
def test_variants_differ_in_network_and_head_only(preset: str) -> None:
    kinds = {
        "rn-c": {"head.kind": "gaussian"},
        "mlp-d": {"actor.kind": "mlp"},
        "mlp-c": {"actor.kind": "mlp", "head.kind": "gaussian"},
    }
    base = configure("Ant-v4", preset=preset, variant="rn-d")
    assert (base.actor.kind, base.head.kind) == ("rn", "categorical")
    for variant, kind in kinds.items():
        other = configure("Ant-v4", preset=preset, variant=variant)
        assert differences(base, other) == {"variant": variant} | kind
        validate(other)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("task", "obs"), [("Ant-v4", "state"), ("PushCube-v1", "state"), ("PushCube-v1", "rgb+state")])
def test_networks_of_other_papers_have_the_size_of_rn(task: str, obs: str, preset: str) -> None:
    if preset == "fast" and task == "PushCube-v1":
        pytest.skip("fast has no settings for ManiSkill")
    sizes = {}
    for kind in ("rn", "simba", "simba-v2", "bronet"):
        config = configure(task, preset=preset, variant=f"{kind}-d", overrides={"env.obs": obs})
        assert config.actor.kind == kind
        trunk = make_trunk(17, config.actor, "actor")
        sizes[kind] = sum(parameter.numel() for parameter in trunk.blocks.parameters())
    assert sizes["simba"] == sizes["rn"]
    assert sizes["simba-v2"] == pytest.approx(sizes["rn"], rel=0.01)
    assert sizes["bronet"] == pytest.approx(sizes["rn"], rel=0.01)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"preset": "papr"}, "there is no preset 'papr'; did you mean paper?"),
        ({"variant": "rnd"}, "there is no variant 'rnd'; did you mean rn-d?"),
        (
            {"variant": "quantile"},
            "there is no variant 'quantile'; valid: bang-bang, bang-off-bang, bronet-d, custom, layernorm-d, "
            "loss-swap, mlp-c, mlp-d, plain-d, residual-d, rn-beta, rn-c, rn-coarse-fine, rn-d, rn-ordinal, rn-smooth, "
            "rn-squashed, rn-unimodal, simba-d, simba-v2-d, td3",
        ),
    ],
)
def test_unknown_names_are_answered_with_the_valid_ones(names: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configure("Ant-v4", **names)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ({"gym": {"updte": {"epochs": 1}}}, "unknown setting 'updte'; did you mean update?"),
        ({"gym": {"update": {"epoch": 1}}}, "unknown setting 'update.epoch'; did you mean epochs?"),
        ({"gym": {"update": {"epochs": 1.5}}}, "update.epochs is 1.5; it must be int"),
        ({"gym": {"actors": {"rn": {"widht": 1}}}}, "unknown setting 'actor.widht'; did you mean width?"),
        ({"gymn": {}}, "unknown key 'gymn' in preset 'fast'; did you mean gym?"),
    ],
)
def test_a_mistake_in_a_preset_is_an_error(
    mistake: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**table("fast"), **mistake}
    monkeypatch.setattr(presets, "table", lambda name: wrong if name == "fast" else table(name))
    with pytest.raises(ConfigError) as raised:
        configure("Ant-v4", preset="fast")
    assert str(raised.value) == sentence


def test_overrides_are_nested_or_dotted_and_come_last() -> None:
    dotted = configure("Ant-v4", preset="fast", overrides={"ppo.clip": 0.1, "update.epochs": 3, "steps": 7})
    nested_ = configure("Ant-v4", preset="fast", overrides={"ppo": {"clip": 0.1}, "update": {"epochs": 3}, "steps": 7})
    assert dotted == nested_
    assert (dotted.ppo.clip, dotted.update.epochs, dotted.steps) == (0.1, 3, 7)
    assert dotted.update.minibatches == 32, "the preset's other settings stay"
    with pytest.raises(ConfigError, match=r"unknown setting 'ppo\.clap'"):
        configure("Ant-v4", overrides={"ppo.clap": 0.1})


def test_tables_are_merged_at_every_depth_and_left_as_they_were() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merged(base, {"a": {"c": {"f": 4}}, "e": {"g": 5}}) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert nested({"a.b": 1, "a.c": 2, "d": {"e.f": 3}}) == {"a": {"b": 1, "c": 2}, "d": {"e.f": 3}}
    before = to_dict(configure("Ant-v4"))
    configure("Ant-v4", preset="authors", overrides={"update.epochs": 1})
    assert to_dict(configure("Ant-v4")) == before


def test_every_preset_and_variant_says_what_it_is() -> None:
    for contents in (*map(table, PRESETS), *table("variants").values(), *table("tasks").values()):
        assert contents["description"]


# The paper's table, columns "ManiSkill (state)" and "ManiSkill (RGB)".
MANISKILL_TABLE: dict[str, tuple[Any, Any]] = {
    "advantage.gae_lambda": (0.9, 0.9),
    "ppo.clip": (0.2, 0.2),
    "update.value_coef": (0.5, 0.5),
    "update.entropy_coef": (0.0, 0.0),
    "update.max_grad_norm": (0.5, 0.5),
    "update.epochs": (4, 8),
    "update.minibatches": (32, 32),
    "update.normalize_advantages": (True, True),
    "env.num_envs": (4096, 1024),
    "steps": (50_000_000, 50_000_000),
    "update.learning_rate": (3e-4, 3e-4),
    "update.weight_decay": (1e-5, 1e-5),
    "critic.width": (256, 512),
    "critic.activation": ("tanh", "relu"),
    "critic.depth": (2, 1),
    # What the table leaves open, from the released code.
    "update.adam_eps": (1e-5, 1e-5),
    "update.anneal": (False, False),
    "update.value_clip": (0.0, 0.0),
    "update.target_kl": (0.1, 0.1),
    "advantage.bootstrap_on_termination": (True, True),
    "normalize.observation": (False, False),
    "normalize.reward": (False, False),
}
MANISKILL_ACTORS: dict[str, dict[str, tuple[Any, Any]]] = {
    "mlp-c": {"actor.width": (256, 512), "actor.activation": ("tanh", "relu"), "actor.depth": (2, 1)},
    "rn-d": {"actor.width": (128, 512), "actor.depth": (2, 1)},
}
# Rollout length and discount of each task in the released scripts.
STATE_TASKS = {
    "PushCube-v1": (4, 0.8),
    "PickCube-v1": (4, 0.8),
    "PullCube-v1": (4, 0.8),
    "PokeCube-v1": (4, 0.8),
    "LiftPegUpright-v1": (4, 0.8),
    "PickCubeSO100-v1": (8, 0.8),
    "PushT-v1": (16, 0.99),
    "RollBall-v1": (16, 0.95),
    "PickSingleYCB-v1": (16, 0.8),
    "StackCube-v1": (50, 0.8),
}
IMAGE_TASKS = {
    "PushCube-v1": (50, 0.8),
    "PickCube-v1": (16, 0.8),
    "PokeCube-v1": (16, 0.8),
    "PushT-v1": (16, 0.99),
    "StackCube-v1": (50, 0.8),
}


@pytest.mark.parametrize(
    ("task", "preset", "max_kl", "damping", "calibrated"),
    [
        ("HalfCheetah-v4", "paper", 0.05, 10.0, True),
        ("HalfCheetah-v4", "fast", 0.05, 10.0, True),
        ("HalfCheetah-v4", "authors", 0.1, 0.1, False),
        ("PickCube-v1", "paper", 0.01, 0.1, False),
        ("PickCube-v1", "authors", 0.01, 0.1, False),
    ],
)
def test_trust_regions_are_calibrated_on_gymnasium_and_released_elsewhere(
    task: str, preset: str, max_kl: float, damping: float, calibrated: bool
) -> None:
    trpo = configure(task, preset=preset, algo="trpo").trpo
    assert (trpo.max_kl, trpo.damping, trpo.calibrated) == (max_kl, damping, calibrated)


@pytest.mark.parametrize(("obs", "column"), [("state", 0), ("rgb+state", 1)])
@pytest.mark.parametrize("variant", ["rn-d", "mlp-c"])
def test_paper_has_every_value_of_the_papers_maniskill_columns(obs: str, column: int, variant: str) -> None:
    config = configure("PickCube-v1", variant=variant, scale="gpu", overrides={"env.obs": obs})
    expected = {key: values[column] for key, values in (MANISKILL_TABLE | MANISKILL_ACTORS[variant]).items()}
    found = settings(config)
    assert {key: found[key] for key in expected} == expected
    validate(config)


@pytest.mark.parametrize(("obs", "tasks"), [("state", STATE_TASKS), ("rgb+state", IMAGE_TASKS)])
def test_every_maniskill_task_has_the_rollout_length_and_discount_of_its_script(
    obs: str, tasks: dict[str, tuple[int, float]]
) -> None:
    for task, expected in tasks.items():
        config = configure(task, scale="gpu", overrides={"env.obs": obs})
        assert (config.rollout_steps, config.advantage.gamma) == expected
        small = configure(task, scale="cpu", overrides={"env.obs": obs})
        assert small.advantage == config.advantage
        assert small.batch_size <= 2048
        assert small.actor == config.actor
        for algo in ("ppo", "spo", "trpo"):
            for preset in ("paper", "authors"):
                validate(configure(task, preset=preset, algo=algo, overrides={"env.obs": obs}))


def test_authors_maniskill_settings_are_those_of_the_released_code() -> None:
    state = configure("PickCube-v1", preset="authors", variant="mlp-c", scale="gpu")
    assert (state.critic.depth, state.actor.width, state.actor.depth, state.update.weight_decay) == (3, 128, 2, 0.0)
    images = configure("PickCube-v1", preset="authors", variant="mlp-c", scale="gpu", overrides={"env.obs": "rgb"})
    assert (images.actor.activation, images.critic.activation, images.update.epochs) == ("tanh", "tanh", 4)
    paper, authors = (configure("PickCube-v1", preset=p, algo="trpo", scale="gpu").advantage for p in PRESETS[:2])
    assert ((paper.gamma, paper.gae_lambda), (authors.gamma, authors.gae_lambda)) == ((0.99, 0.95), (0.8, 0.9))


@pytest.mark.parametrize(
    ("overrides", "scale"),
    [
        ({"env.backend": "physx_cuda"}, "gpu"),
        ({"env.backend": "physx_cpu"}, "cpu"),
        ({"device": "cuda:1"}, "gpu"),
        ({"device": "cpu"}, "cpu"),
        ({"scale": "gpu", "device": "cpu"}, "gpu"),
    ],
)
def test_the_scale_is_that_of_the_simulator_unless_given(overrides: dict[str, Any], scale: str) -> None:
    config = configure("PushCube-v1", overrides=overrides)
    assert config.scale == scale
    assert config.env.num_envs == {"gpu": 4096, "cpu": 16}[scale]


def test_any_maniskill_task_is_configured_by_its_backend() -> None:
    config = configure("TurnFaucet-v1", overrides={"env.backend": "physx_cuda"})
    assert (config.env.num_envs, config.rollout_steps, config.advantage.gamma) == (4096, 50, 0.8)
    assert configure("TurnFaucet-v1").env.num_envs == 16, "by name alone it could be anything"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"task": "Ant-v4", "scale": "cpu"},
            "--scale is cpu; only ManiSkill tasks have scales, and Ant-v4 is not one",
        ),
        (
            {"task": "Ant-v4", "overrides": {"scale": "gpu"}},
            "--scale is gpu; only ManiSkill tasks have scales, and Ant-v4 is not one",
        ),
        (
            {"task": "PushCube-v1", "preset": "fast"},
            "preset 'fast' has no settings for ManiSkill's tasks; use paper or authors",
        ),
    ],
)
def test_what_a_family_does_not_have_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configure(**arguments)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("variant", "settings", "sentence"),
    [
        ("mlp-c", {"head.bins": 7}, "variant 'mlp-c' has a gaussian head, which has no bins; leave head.bins out"),
        ("rn-c", {"head.bins": 41}, "or choose another variant: rn-d, mlp-d, loss-swap, "),
        (
            "rn-d",
            {"head.log_std": "state-dependent"},
            "categorical head, which has no log_std; .*: rn-c, mlp-c, rn-squashed$",
        ),
        ("loss-swap", {"head.mean": "squashed"}, "has a loss-swap head, which has no mean"),
        ("loss-swap", {"head.log_std": "state-independent"}, "has a loss-swap head, which has no log_std;"),
        ("custom", {"head.kind": "gaussian", "head.bins": 7}, "variant 'custom' has a gaussian head"),
    ],
)
def test_a_chosen_setting_that_the_head_does_not_read_is_refused(
    variant: str, settings: dict[str, Any], sentence: str
) -> None:
    # The overrides of a program or a study are often shared by several variants, and allowed.
    config = configure("Hopper-v4", variant=variant, overrides=settings)
    with pytest.raises(ConfigError, match=sentence):
        require_used(config, settings)


def test_what_a_plugins_head_reads_is_its_own_affair() -> None:
    overrides = {"head.kind": "my_package:Head", "head.bins": 7, "head.log_std_init": 1.0}
    config = configure("Hopper-v4", variant="custom", overrides=overrides)
    require_used(config, overrides)
    assert config.head.bins == 7
