"""Settings: what they refuse and in which words, and that a saved configuration comes back as it was."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from detent.config import Config, EnvConfig, NormalizeConfig, UpdateConfig, validate
from detent.config import schema as module
from detent.config.io import RENAMED, load_config, override, read_toml, save_config, to_dict
from detent.errors import ConfigError, nearest


def sections(config: Any = None) -> Iterator[Any]:
    """The configuration and every group of settings in it."""
    config = config or Config()
    yield config
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(getattr(config, field.name)):
            yield from sections(getattr(config, field.name))


def documented_fields(kind: type[Any]) -> set[str]:
    """Fields with a string under them, here or in the class they are inherited from."""
    found: set[str] = set()
    for parent in kind.__mro__:
        if parent.__module__ != module.__name__:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and str(following.value.value).endswith(".")
            ):
                found.add(statement.target.id)
    return found


def test_every_setting_has_a_sentence_of_help() -> None:
    for section in sections():
        settings = {
            field.name
            for field in dataclasses.fields(section)
            if not dataclasses.is_dataclass(getattr(section, field.name))
        }
        assert settings - documented_fields(type(section)) == set(), type(section).__name__


@pytest.mark.parametrize(
    ("setting", "value", "right"),
    [
        ("steps", 0, "at least 1"),
        ("steps", -5, "at least 1"),
        ("schedule_steps", 0, "at least 1"),
        ("rollout_steps", 0, "at least 1"),
        ("threads", -1, "must not be negative"),
        ("seed", -1, "must not be negative"),
        ("env.num_envs", 0, "at least 1"),
        ("actor.width", 0, "at least 1"),
        ("actor.depth", -1, "must not be negative"),
        ("critic.width", 0, "at least 1"),
        ("critic.depth", -1, "must not be negative"),
        ("head.bins", 1, "at least 2"),
        ("head.bins", 32768, "at most 32767"),
        ("head.log_std_init", 11.0, "[-10, 10]"),
        ("head.log_std_init", math.nan, "[-10, 10]"),
        ("head.log_std_min", -20.5, "[-20, 20]"),
        ("head.log_std_min", math.nan, "[-20, 20]"),
        ("head.log_std_min", 10.0, "less than head.log_std_max, which is 10.0"),
        ("head.log_std_max", 20.5, "[-20, 20]"),
        ("head.log_std_max", math.inf, "[-20, 20]"),
        ("normalize.clip", 0.0, "positive"),
        ("normalize.warmup_steps", -1, "must not be negative"),
        ("advantage.gamma", 1.01, "[0, 1]"),
        ("advantage.gamma", math.nan, "[0, 1]"),
        ("advantage.gae_lambda", -0.1, "[0, 1]"),
        ("update.epochs", 0, "at least 1"),
        ("update.minibatches", 0, "at least 1"),
        ("update.learning_rate", 0.0, "positive"),
        ("update.learning_rate", math.inf, "finite"),
        ("update.adam_eps", 0.0, "positive"),
        ("update.weight_decay", -1e-5, "not negative"),
        ("update.max_grad_norm", -0.5, "not negative"),
        ("update.entropy_coef", -1.0, "not negative"),
        ("update.entropy_coef", math.inf, "finite"),
        ("update.value_coef", math.nan, "finite"),
        ("update.value_clip", -0.2, "not negative"),
        ("update.target_kl", -0.2, "not negative"),
        ("ppo.clip", 0.0, "positive"),
        ("spo.epsilon", 0.0, "positive"),
        ("trpo.max_kl", 0.0, "positive"),
        ("trpo.max_kl", math.inf, "finite"),
        ("trpo.damping", -0.1, "positive"),
        ("trpo.damping", math.nan, "positive"),
        ("trpo.chunk", 0, "at least 1"),
        ("trpo.cg_iterations", 0, "at least 1"),
        ("trpo.max_backtracks", 0, "at least 1"),
        ("trpo.backtrack_coef", 1.0, "between 0 and 1"),
        ("eval.interval", -1, "must not be negative"),
        ("eval.episodes", 0, "at least 1"),
        ("eval.num_envs", 0, "at least 1"),
        ("checkpoint.interval", -1, "must not be negative"),
        ("checkpoint.keep", 0, "at least the latest"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_the_value_and_what_is_right(
    setting: str, value: float, right: str
) -> None:
    group, _, name = setting.rpartition(".")
    with pytest.raises(ConfigError) as raised:
        override(Config(), {group: {name: value}} if group else {name: value})
    assert str(raised.value).startswith(f"{setting} is {value}; ")
    assert right in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": 5}, "unknown setting 'step'; did you mean steps"),
        ({"ppo": {"clp": 0.1}}, "unknown setting 'ppo.clp'; did you mean clip?"),
        (
            {"head": {"number": 3}},
            "unknown setting 'head.number'; valid: bins, bins_per_dimension, kind, log_std, log_std_init, "
            "log_std_max, log_std_min, mean",
        ),
        (
            {"head": {"log_std_min": -1.0, "log_std_init": -2.0}},
            "head.log_std_init is -2.0; it must lie in [-1, 10], from head.log_std_min to log_std_max",
        ),
        ({"ppo": 0.1}, "'ppo' is a group of settings, not a value; found 0.1"),
        ({"steps": 1.5}, "steps is 1.5; it must be int"),
        ({"steps": float("inf")}, "steps is inf; it must be int"),
        ({"steps": "many"}, "steps is 'many'; it must be int"),
        ({"steps": True}, "steps is True; it must be int"),
        ({"tensorboard": 1}, "tensorboard is 1; it must be bool"),
        ({"task": 7}, "task is 7; it must be str"),
        ({"ppo": {"clip": "big"}}, "ppo.clip is 'big'; it must be float"),
        ({"env": {"backend": 3}}, "env.backend is 3; it must be str"),
        ({"update": {"engine": "autogrd"}}, "update.engine is 'autogrd'; did you mean autograd or auto?"),
        ({"head": {"mean": "flat"}}, "head.mean is 'flat'; valid: plain, squashed"),
        ({"env": {"action_low": -1.0}}, "env.action_low is -1.0; it must be a list"),
        ({"env": {"action_low": ["left"]}}, "env.action_low is 'left'; it must be float"),
        ({"env": {"kwargs": 3}}, "env.kwargs is 3; it must be a table"),
    ],
)
def test_unknown_settings_and_wrong_types_name_the_valid_ones(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        override(Config(), changes)
    (tmp_path / "config.toml").write_text(tomli_w.dumps(changes))
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load_config(tmp_path / "config.toml")


def test_whole_numbers_are_taken_for_floats() -> None:
    changed = override(Config(), {"ppo": {"clip": 1}, "env": {"action_low": [-1, 0.5]}})
    assert changed.ppo.clip == 1.0
    assert isinstance(changed.ppo.clip, float)
    assert changed.env.action_low == (-1.0, 0.5)


def test_integral_floats_are_taken_for_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("steps = 1e5\n[update]\nepochs = 3.0\n")
    changes = {"steps": 1e5, "update": {"epochs": 3.0}}
    for config in (override(Config(), changes), load_config(tmp_path / "config.toml")):
        assert (config.steps, config.update.epochs) == (100_000, 3)
        assert {type(config.steps), type(config.update.epochs)} == {int}


def test_what_is_not_overridden_stays() -> None:
    before = Config(task="Hopper-v4", seed=7)
    after = override(before, {"update": {"epochs": 3}})
    assert after.update == dataclasses.replace(before.update, epochs=3)
    assert dataclasses.replace(after, update=before.update) == before


def test_a_saved_configuration_comes_back_equal(tmp_path: Path) -> None:
    config = Config(
        task="package.module:Env-v0",
        seed=12,
        init_from='runs/with "quotes" and \\',
        env=EnvConfig(
            num_envs=3,
            kwargs={"range": [0.3, 1.0], "name": "slow", "hard": True, "skip": 5, "nested": {"depth": [1, 2]}},
            action_low=(-3.0, 0.0),
            action_high=(1e-7, math.pi),
        ),
        update=UpdateConfig(learning_rate=1 / 3, weight_decay=1e-300),
        normalize=NormalizeConfig(clip=math.inf),
    )
    save_config(config, tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"], "no temporary file stays"


def test_a_configuration_that_cannot_be_saved_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    save_config(Config(task="old"), path)
    with pytest.raises(TypeError, match="builtin_function_or_method"):
        save_config(Config(task="new", env=EnvConfig(kwargs={"callback": print})), path)
    assert load_config(path).task == "old"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("steps = = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name, why in (
        ("missing.toml", "there is no file"),
        ("broken.toml", "is not valid TOML: .*line 1"),
        ("binary.toml", "is not valid TOML"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=why) as raised:
            read_toml(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": ""}, "no task was given"),
        (
            {"update": {"minibatches": 7}},
            "7 minibatches do not divide the batch of 16 environments x 1024 steps = 16384; choose update.minibatches",
        ),
        (
            {"env": {"num_envs": 2}, "rollout_steps": 4, "update": {"minibatches": 8}},
            "minibatches of one transition cannot have their advantages normalized",
        ),
        ({"steps": 5_000_001}, "steps (5000001) goes past schedule_steps (5000000)"),
        ({"algo": "trpo", "ppo": {"clip": 0.1}}, "the algorithm is trpo, which takes no ppo.* settings"),
        ({"trpo": {"max_kl": 0.1}}, "the algorithm is ppo, which takes no trpo.* settings"),
        ({"algo": "trpo", "update": {"entropy_coef": 0.1}}, "update.entropy_coef is 0.1; TRPO has none"),
        ({"algo": "trpo", "update": {"target_kl": 0.1}}, "update.target_kl is 0.1; TRPO has none"),
        (
            {"head": {"kind": "loss-swap", "log_std": "state-dependent"}},
            "the loss-swap head has one standard deviation per action dimension",
        ),
        ({"env": {"kwargs": {"callback": None}}}, "env.kwargs {'callback': None} cannot be written to config.toml"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], sentence: str) -> None:
    good = Config(task="Hopper-v4")
    validate(good)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        validate(override(good, changes))


ONE_EACH = {"env": {"num_envs": 2}, "rollout_steps": 4}


@pytest.mark.parametrize(
    ("works", "does_not"),
    [
        ({"steps": 5_000_000}, {"steps": 5_000_001}),
        ({"steps": 6_000_000, "update": {"anneal": False}}, {"steps": 6_000_000}),
        (
            ONE_EACH | {"update": {"minibatches": 8, "normalize_advantages": False}},
            ONE_EACH | {"update": {"minibatches": 8}},
        ),
        (ONE_EACH | {"update": {"minibatches": 4}}, ONE_EACH | {"update": {"minibatches": 5}}),
    ],
)
def test_settings_that_look_wrong_but_work_are_accepted(works: dict[str, Any], does_not: dict[str, Any]) -> None:
    def refused(changes: dict[str, Any]) -> bool:
        try:
            validate(override(Config(task="Hopper-v4"), changes))
        except ConfigError:
            return True
        return False

    assert not refused(works)
    assert refused(does_not)


@pytest.mark.parametrize(
    ("steps", "iterations", "total"),
    [
        # 4 environments: warm-up 4 x 8 = 32 steps, then 4 x 32 = 128 per iteration.
        (1, 1, 160),
        (32, 1, 160),
        (160, 1, 160),
        (161, 2, 288),
        (288, 2, 288),
        (1000, 8, 1056),
    ],
)
def test_steps_are_rounded_up_to_whole_iterations_after_the_warm_up(steps: int, iterations: int, total: int) -> None:
    config = Config(steps=steps, rollout_steps=32, env=EnvConfig(num_envs=4), normalize=NormalizeConfig(warmup_steps=8))
    assert (config.batch_size, config.warmup) == (128, 32)
    assert (config.iterations, config.total_steps) == (iterations, total)


def test_without_observation_statistics_to_start_there_is_no_warm_up() -> None:
    # The paper's 5M steps: 305.2 iterations of 16384 with and without the 1024 steps of warm-up.
    assert (Config().warmup, Config().iterations, Config().total_steps) == (1024, 306, 1024 + 306 * 16384)
    tuned = Config(init_from="runs/other")
    assert (tuned.warmup, tuned.iterations, tuned.total_steps) == (0, 306, 306 * 16384)
    assert Config(normalize=NormalizeConfig(observation=False)).warmup == 0
    exact = Config(init_from="runs/other", steps=3 * 16384)
    assert (exact.iterations, exact.total_steps) == (3, 3 * 16384)


def test_intervals_are_whole_iterations_and_at_least_one() -> None:
    config = Config()
    assert [config.iterations_per(steps) for steps in (1, 16384, 24576 + 1, 250_000)] == [1, 1, 2, 15]


def test_plain_dictionaries_hold_every_setting() -> None:
    config = Config(env=EnvConfig(action_low=(1.0, 2.0)))
    plain = to_dict(config)
    assert plain["env"]["action_low"] == [1.0, 2.0]
    assert override(Config(), plain) == config
    assert set(plain) == {field.name for field in dataclasses.fields(Config)}


def test_nearest_words_come_first_and_all_words_otherwise() -> None:
    assert nearest("evl", ["train", "eval"]) == "did you mean eval?"
    assert nearest("xyz", ["train", "eval"]) == "valid: eval, train"


def test_settings_by_the_names_of_earlier_versions_are_read(tmp_path: Path) -> None:
    assert set(RENAMED) == {"trpo.backtracks", "trpo.shrink"}
    (tmp_path / "config.toml").write_text("[trpo]\nbacktracks = 3\nshrink = 0.25\n")
    found = load_config(tmp_path / "config.toml").trpo
    assert (found.max_backtracks, found.backtrack_coef) == (3, 0.25)
    with pytest.raises(ConfigError, match=r"trpo\.max_backtracks is 0; it must be at least 1"):
        override(Config(), {"trpo": {"backtracks": 0}})
