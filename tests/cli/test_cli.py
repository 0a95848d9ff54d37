"""The command line as a user meets it: what arrives, what is refused in which words, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space, Text
from numpy.typing import NDArray

import detent
from detent import doctor
from detent.cli import COMMANDS, main
from detent.cli.train import parse_train
from detent.config import Config, EnvConfig, Readout
from detent.config.io import load_config, override, save_config
from detent.config.presets import configure
from detent.envs.scripted import TargetEnv
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.plugins import REGISTRIES
from detent.seeding import derive_seed
from detent.training.evaluate import ROW_KEYS
from detent.training.loggers import LOGGERS
from detent.training.run_directory import read_rows
from detent.training.video import record

TARGET = "detent.envs.scripted:Target-v0"
SMALL = (
    "--steps 512 --threads 1 --rollout-steps 32 --envs 4 --update.minibatches 4 --update.epochs 1 --width 8 "
    "--eval.episodes 2 --eval.interval 128 --checkpoint.interval 256 --normalize.warmup-steps 8"
)

ACTIONS: dict[str, Space[Any]] = {
    "good": Box(-1.0, 1.0, (2,)),
    "unbounded": Box(-np.inf, np.inf, (2,)),
    "half": Box(0.0, np.inf, (2,)),
    "flat": Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 2.0], np.float32)),
    "integer": Box(0, 5, (2,), np.int64),
    "text": Text(4),
    "single": Discrete(1),
    "discrete": Discrete(3),
}
OBSERVATIONS: dict[str, Space[Any]] = {
    "good": Box(-1.0, 1.0, (3,)),
    "image": Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": Discrete(4),
    "dict": Dict({"velocity": Box(-1.0, 1.0, (2,)), "angle": Box(-1.0, 1.0, (1,))}),
    "mixed": Dict({"velocity": Box(-1.0, 1.0, (2,)), "mode": Discrete(2)}),
}


class OddEnv(gymnasium.Env[Any, Any]):
    """Spaces to choose from; in step `at` something happens."""

    def __init__(self, action: str = "good", observation: str = "good", happens: str = "", at: int = 0) -> None:
        self.action_space, self.observation_space = ACTIONS[action], OBSERVATIONS[observation]
        self._happens, self._left = happens, at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0 and self._happens == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        if self._left == 0 and self._happens == "error":
            raise ZeroDivisionError("the motor is gone")
        return self.observation_space.sample(), 0.0, False, False, {}


gymnasium.register("Odd-v0", entry_point=f"{__name__}:OddEnv", max_episode_steps=10)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Detent = Callable[..., Outcome]


def split(*parts: object) -> list[str]:
    """The words of a command line."""
    return [word for part in parts for word in str(part).split()]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Detent:
    """Runs a command in an empty directory."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*parts: object) -> Outcome:
        capsys.readouterr()
        try:
            code = main(split(*parts))
        except SystemExit as ending:
            code = int(str(ending.code))
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    path = tmp_path_factory.mktemp("runs") / "target"
    assert main(split("train", TARGET, SMALL, "--out", path)) == 0
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run to play with."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def settings(*parts: object) -> Config:
    return parse_train(split(*parts)).settings


# Help.


def test_help_names_every_command(cli: Detent) -> None:
    for words, code in ((["--help"], 0), (["-h"], 0), ([], 2)):
        outcome = cli(*words)
        assert outcome.code == code
        for command in COMMANDS:
            assert f"detent {command}" in outcome.out
    assert cli("--version") == Outcome(0, f"{detent.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["--bins", "--env.kwargs", "--resume", "bins per action dimension"]),
        ("eval", ["--checkpoint", "best, latest or a step number"]),
        ("video", ["--max-steps"]),
        ("diagnose", ["--rollouts", "best, latest or a step number"]),
        ("draw", ["--width", "best, latest or a step number"]),
        ("bench", ["--under-load", "--full", "--repeats"]),
        ("list", ["variants"]),
        ("doctor", ["--json"]),
    ],
)
def test_each_command_explains_its_flags(command: str, words: list[str], cli: Detent) -> None:
    outcome = cli(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    for word in words:
        assert word in outcome.out


def test_an_unknown_command_names_the_nearest(cli: Detent) -> None:
    assert cli("trian", "Hopper-v4") == Outcome(2, "", "detent: there is no command 'trian'; did you mean train?\n")
    assert "valid: bench, diagnose, doctor, draw, eval, list, proposition, report, study, train, video" in cli("x").err


# Where settings come from.


def test_short_flags_arrive() -> None:
    config = settings(
        "Hopper-v4 --variant mlp-d --algo ppo --preset fast --steps 1_000 --seed 9 --bins 7 --width 32 --envs 8",
        "--threads 3 --device cpu --action-low -1 -2.5 --action-high 3 --init-from elsewhere",
        "--env.kwargs frame_skip=5 healthy_z_range=[0.3,1.0] terminate=false name=abc text='7' eq=a=b",
        "--ppo.clip 0.1 --update.no-anneal --tensorboard --critic.depth 3",
    )
    expected = configure("Hopper-v4", preset="fast", variant="mlp-d")
    assert config == override(
        expected,
        {
            "steps": 1000,
            "seed": 9,
            "threads": 3,
            "device": "cpu",
            "init_from": "elsewhere",
            "tensorboard": True,
            "head": {"bins": 7},
            "actor": {"width": 32},
            "critic": {"depth": 3},
            "ppo": {"clip": 0.1},
            "update": {"anneal": False},
            "env": {
                "num_envs": 8,
                "action_low": [-1.0, -2.5],
                "action_high": [3.0],
                "kwargs": {
                    "frame_skip": 5,
                    "healthy_z_range": [0.3, 1.0],
                    "terminate": False,
                    "name": "abc",
                    "text": "7",
                    "eq": "a=b",
                },
            },
        },
    )


@pytest.mark.parametrize(("short", "long"), [("bins", "head.bins"), ("width", "actor.width"), ("envs", "env.num-envs")])
def test_short_and_long_flags_are_the_same(short: str, long: str) -> None:
    assert settings("Hopper-v4", f"--{short}", 6) == settings("Hopper-v4", f"--{long}", 6) != settings("Hopper-v4")


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'task = "Ant-v4"\npreset = "fast"\nvariant = "mlp-d"\nseed = 5\n[update]\nepochs = 3\ntarget_kl = 1\n'
    )
    config = settings("--config", file, "--update.epochs", 4, "--seed", 6)
    assert (config.task, config.variant, config.preset) == ("Ant-v4", "mlp-d", "fast")
    assert (config.update.epochs, config.seed) == (4, 6), "flags"
    assert config.update.target_kl == 1.0, "file"
    assert (config.rollout_steps, config.actor.kind) == (128, "mlp"), "preset and variant of the file"
    assert settings("Hopper-v4", "--config", file).task == "Hopper-v4", "the task may be another"


def test_a_flag_equal_to_the_preset_goes_before_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[head]\nbins = 5\n")
    assert settings("Ant-v4", "--config", tmp_path / "mine.toml", "--bins", 41).head.bins == 41


def test_a_file_without_names_takes_them_from_the_flags(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[ppo]\nclip = 0.3\n")
    config = settings("Ant-v4", "--preset", "authors", "--variant", "rn-c", "--config", tmp_path / "mine.toml")
    assert config == configure("Ant-v4", preset="authors", variant="rn-c", overrides={"ppo.clip": 0.3})


def test_the_configuration_of_a_run_repeats_it(trained: Path, tmp_path: Path) -> None:
    assert settings("--config", trained / "config.toml") == load_config(trained / "config.toml")
    odd = EnvConfig(kwargs={"flag": True, "range": [0.5, 1.0], "name": "true"}, action_low=(-1.0, 2.0))
    config = override(configure("Ant-v4", preset="authors", variant="mlp-c"), {"seed": 3})
    save_config(override(config, {"env": vars(odd)}), tmp_path / "config.toml")
    assert settings("--config", tmp_path / "config.toml") == load_config(tmp_path / "config.toml")


def test_a_file_may_have_settings_that_its_head_ignores_but_flags_beside_it_may_not(
    cli: Detent, tmp_path: Path
) -> None:
    save_config(configure("Hopper-v4", variant="mlp-c"), tmp_path / "config.toml")
    assert "bins = 41" in (tmp_path / "config.toml").read_text(), "a preset's bins are for all variants"
    assert settings("--config", tmp_path / "config.toml").head.kind == "gaussian"
    assert "which has no bins" in cli("train --config", tmp_path / "config.toml", "--bins 7").err


# Wrong input.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train", "no task was given; for instance: detent train HalfCheetah-v4"),
        ("train Hoper-v4", "Gymnasium has no environment 'Hoper-v4'; did you mean Hopper-v4 or Hopper-v5? An env"),
        (
            "train nowhere.at_all:Env-v0",
            "the module 'nowhere.at_all' of task 'nowhere.at_all:Env-v0' cannot be imported",
        ),
        ("train Hopper-v4 --variant rnd", "there is no variant 'rnd'; did you mean rn-d?"),
        ("train Hopper-v4 --preset papr", "there is no preset 'papr'; did you mean paper?"),
        ("train Hopper-v4 --algo sac", "there is no algo 'sac'; valid: ppo, spo, td3, trpo"),
        ("train Hopper-v4 --log tensorboard --log wandb", "log is given 2 times; give all its values at once"),
        ("train Hopper-v4 --seed abc --out abc", "a number is abc; it must be a whole number, such as 100000 or 1e5"),
        ("train Hopper-v4 --variant mlp-c --bins 7", "variant 'mlp-c' has a gaussian head, which has no bins; leave"),
        ("train Hopper-v4 --variant rn-c --head.bins=41", "variant 'rn-c' has a gaussian head, which has no bins;"),
        ("train Hopper-v4 --head.log-std-init -1", "variant 'rn-d' has a categorical head, which has no log_std_init;"),
        ("train Hopper-v4 --bins 1", "head.bins is 1; a head over bins needs at least 2 bins per dimension"),
        ("train Hopper-v4 --steps -5", "steps is -5; it must be at least 1"),
        ("train Hopper-v4 --width 0", "actor.width is 0; it must be at least 1"),
        ("train Hopper-v4 --critic.width 0", "critic.width is 0; it must be at least 1"),
        ("train Hopper-v4 --update.learning-rate inf", "update.learning_rate is inf; it must be positive and finite"),
        ("train Hopper-v4 --update.minibatches 7", "7 minibatches do not divide the batch of 16 environments x 1024"),
        ("train Hopper-v4 --steps 6_000_000", "goes past schedule_steps (5000000)"),
        ("train Hopper-v4 --device warp", "device 'warp' cannot be used"),
        ("train Hopper-v4 --exact", "--exact requires --resume"),
        ("train Hopper-v4 --config none.toml", "there is no file none.toml"),
        ("train Hopper-v4 --config .", ". cannot be read: Is a directory"),
        ("train Hopper-v4 --threads 1 --init-from none", "none is not a run directory: it has no config.toml"),
        ("train --resume none", "none is not a run directory: it has no config.toml"),
        ("train Hopper-v4 --resume none", "--resume keeps the run's configuration; leave out task"),
        ("train --resume none --out new", "leave out --out"),
        ("train Hopper-v4 --env.kwargs speed", "env.kwargs takes key=value pairs; found 'speed'"),
        ("train Hopper-v4 --env.kwargs speed=3", "Hopper-v4 cannot be made with env.kwargs {'speed': 3}: TypeError"),
        ("train Odd-v0 --env.backend envpool", "EnvPool has no 'Odd-v0'"),
        (
            "train Odd-v0 --env.kwargs action=unbounded",
            "action dimension 0 has bounds [-inf, inf]; bins need finite ones",
        ),
        (
            "train Odd-v0 --env.kwargs action=unbounded --action-low -1",
            "[-inf, inf]; bins need finite ones: give --action",
        ),
        ("train Odd-v0 --env.kwargs action=half", "action dimension 0 has bounds [0, inf]; bins need finite ones"),
        ("train Odd-v0 --env.kwargs action=flat", "action dimension 1 has the empty range [2, 2]"),
        ("train Odd-v0 --env.kwargs action=integer", "type int64; Detent acts in Boxes of floating-point numbers"),
        ("train Odd-v0 --env.kwargs action=text", "the action space is Text("),
        ("train Odd-v0 --env.kwargs action=single", "every dimension needs at least 2 values"),
        ("train Odd-v0 --env.kwargs action=discrete --variant rn-c", "the Gaussian head draws real numbers"),
        ("train Odd-v0 --env.kwargs action=discrete --action-low 0", "--action-low and --action-high are for Boxes"),
        ("train Odd-v0 --action-low -1 0 1", "--action-low has 3 numbers; the action has 2 dimensions (give 1 or 2)"),
        ("train Odd-v0 --action-high 2", "given the range [-1, 2], which leaves its space [-1, 1]"),
        ("train Odd-v0 --env.kwargs observation=image", "the observation is a Box of shape (8, 8, 3) and type uint8"),
        ("train Odd-v0 --env.kwargs observation=discrete", "the observation is Discrete(4)"),
        ("train Odd-v0 --env.kwargs observation=mixed", "entry 'mode' of the observation is Discrete(2)"),
        ("eval none", "none is not a run directory: it has no config.toml"),
        ("eval none --episodes 0", "--episodes is 0; it must be at least 1"),
        ("eval none --envs 0", "--envs is 0; it must be at least 1"),
        ("eval none --threads -1", "--threads is -1; it must not be negative"),
        ("video none", "none is not a run directory: it has no config.toml"),
        ("diagnose none", "none is not a run directory: it has no config.toml"),
        ("proposition --bins 1", "bins is 1; it must be at least 2"),
        ("proposition --samples 5", "samples is 5; it must be at least 100"),
        ("diagnose none --rollouts 0", "--rollouts is 0; it must be at least 1"),
        ("diagnose none --threads -1", "--threads is -1; it must not be negative"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence_and_leaves_nothing(words: str, sentence: str, cli: Detent) -> None:
    outcome = cli(words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"detent {words.split()[0]}: ")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ("train Hopper-v4 --env.backend gymn", ["env.backend is 'gymn'", "did you mean gymnasium?"]),
        ("eval", ["Missing", "RUN"]),
        ("list everything", ["everything", "'all', 'tasks', 'variants', 'presets'"]),
    ],
)
def test_unknown_words_name_the_nearest_or_valid_ones(words: str, sentences: list[str], cli: Detent) -> None:
    outcome = cli(words)
    assert (outcome.code, outcome.out) == (2, "")
    for sentence in sentences:
        assert sentence in outcome.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepps = 3", "unknown setting 'stepps'; did you mean steps"),
        ("[ppo]\nclp = 0.1", "unknown setting 'ppo.clp'; did you mean clip?"),
        ("[head]\nbins = 1", "head.bins is 1;"),
        ('steps = "many"', "steps is 'many'; it must be int"),
        ("task = 3", "task is 3; it must be str"),
        ('variant = "rnd"', "there is no variant 'rnd'; did you mean rn-d?"),
        ("steps 3", "is not valid TOML"),
        ('out = "here"', "unknown setting 'out'"),
    ],
)
def test_a_mistake_in_a_file_is_refused(text: str, sentence: str, cli: Detent, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    outcome = cli("train", "Hopper-v4", "--config", tmp_path / "mine.toml")
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("name", ["variant", "preset"])
def test_a_flag_that_contradicts_the_names_of_a_file_is_refused(name: str, trained: Path, cli: Detent) -> None:
    file = trained / "config.toml"
    outcome = cli("train", "--config", file, f"--{name}", {"variant": "mlp-c", "preset": "fast"}[name])
    value = tomllib.loads(file.read_text())[name]
    assert outcome.code == 2
    assert f"{file} has {name} '{value}' and settings that go with it; leave --{name} out" in outcome.err
    assert list(Path.cwd().iterdir()) == []


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            f"train {TARGET} --threads 1 --steps 300 --out RUN",
            "exists already (detent train --resume RUN continues it); choose another",
        ),
        ("train --resume RUN", "RUN is finished at step 544; --steps extends it"),
        ("train --resume RUN --steps 100", "RUN is planned for 512 steps; --steps can extend it, not shorten it"),
        (
            "train --resume RUN --steps 600 --bins 5 --seed 2",
            "changed: seed, head.bins. To continue with other settings",
        ),
        ("train --resume RUN --steps 600 --env.kwargs a=1", "changed: env.kwargs."),
        ("train --resume RUN --steps -1", "steps is -1; it must be at least 1"),
        ("train --resume RUN --config RUN/config.toml", "leave out --config"),
        ("eval RUN --checkpoint worst", "RUN has no checkpoint 'worst'; there are best, latest, "),
        ("eval RUN --checkpoint 17", "RUN has no checkpoint '17'; there are best, latest, "),
        ("video RUN --episodes 0", "0 episodes"),
        ("video RUN", f"{TARGET} renders no pictures: its metadata has render_modes []"),
        ("diagnose RUN --checkpoint worst", "RUN has no checkpoint 'worst'; there are best, latest, "),
        ("diagnose RUN --rollouts 3", "--rollouts is 3; with 4 minibatches per rollout it must be at least 4"),
    ],
)
def test_a_run_is_not_touched_by_what_is_refused(words: str, sentence: str, run: Path, cli: Detent) -> None:
    before = contents(run)
    outcome = cli(words.replace("RUN", str(run)))
    assert outcome.code == 2
    assert sentence.replace("RUN", str(run)) in outcome.err
    assert outcome.err.count("\n") == 1
    after = contents(run)
    after[str(run / "lock")] = before[str(run / "lock")]
    assert after == before


def test_an_environment_that_has_no_render_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OddEnv renders no pictures"):
        record(OddEnv, lambda observation: observation, tmp_path / "video")
    assert list(tmp_path.iterdir()) == []


def test_a_file_or_full_directory_in_the_way_is_refused(cli: Detent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for out, sentence in (("file", "exists already"), (".", "it is not empty"), ("file/run", "cannot be created")):
        outcome = cli("train", TARGET, SMALL, "--out", tmp_path / out)
        assert outcome.code == 2
        assert sentence in outcome.err
        assert outcome.err.count("\n") == 1


# Training.


def test_training_prints_plain_lines_into_a_pipe(cli: Detent) -> None:
    outcome = cli("train", TARGET, SMALL, "--out", "run")
    assert (outcome.code, outcome.err) == (0, "")
    first, *middle, last = outcome.out.splitlines()
    assert first.startswith(f"{TARGET} · rn-d · ppo · preset paper · seed 1 · 512 steps, rounded up to 544 ")
    assert any(line.startswith("step 544/544  return -") and "  sps " in line for line in middle)
    assert any(line.startswith("eval at 544:  sampled -") for line in middle)
    assert last == "finished: run (detent eval run, detent video run)"
    assert "\x1b" not in outcome.out
    assert read_rows(Path("run/metrics.jsonl"))[-1]["step"] == 544


def test_without_out_the_run_goes_to_runs_and_says_so(cli: Detent) -> None:
    outcome = cli("train", TARGET, SMALL, "--variant", "mlp-c", "--seed", 4)
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("Target-v0-mlp-c-ppo-s4-2")
    assert f"run directory {path}\n" in outcome.out


def test_an_environment_in_the_current_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium\n"
        "from detent.envs.scripted import TargetEnv\n"
        "gymnasium.register('Own-v0', entry_point=TargetEnv, max_episode_steps=8)\n"
        "gymnasium.register('Endless-v0', entry_point=TargetEnv)\n"
    )
    command = [str(Path(sys.executable).with_name("detent")), "train"]
    flags = split(
        "--steps 64 --rollout-steps 16 --envs 2 --update.minibatches 2 --eval.episodes 1 --threads 1 --out run"
    )
    done = subprocess.run(
        [*command, "own_envs:Own-v0", *flags], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "evals.jsonl").exists()
    # An episode that never ends is given up on, in words.
    flags[-1] = "endless"
    done = subprocess.run(
        [*command, "own_envs:Endless-v0", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "an episode did not end within 10,000 steps, and the environment has no time limit" in done.stderr


def test_constructor_arguments_and_bounds_reach_the_environment_and_dicts_are_announced(cli: Detent) -> None:
    arguments = "--action-low -2 0 --action-high 2 --env.kwargs action=unbounded observation=dict --out run"
    outcome = cli("train", "Odd-v0", SMALL, arguments)
    assert outcome.code == 0, outcome.err
    assert "Dict observation: angle, velocity concatenated in this order into 3 numbers." in outcome.out
    spec = checkpoints.read_state(checkpoints.locate(Path("run"), "latest")).spec
    assert (spec.action.low, spec.action.high) == ((-2.0, 0.0), (2.0, 2.0))
    assert spec.observation.keys == ("angle", "velocity")


def test_a_stop_request_is_exit_code_3_and_the_run_goes_on_afterwards(cli: Detent) -> None:
    # 8 steps of warm-up, then iterations of 32: every process gets its signal in the middle of its first iteration.
    outcome = cli("train Odd-v0", SMALL, "--out run --env.kwargs happens=SIGTERM at=20")
    assert (outcome.code, outcome.err) == (3, "")
    assert "stopping after this iteration, with a checkpoint" in outcome.out
    assert outcome.out.endswith(
        "stopped at step 160 with a checkpoint (stopped on request); resume with: detent train --resume run\n"
    )
    assert checkpoints.read_state(Path("run/checkpoints/160")).iteration == 1
    assert json.loads(Path("run/run.json").read_text())["status"] == "stopped"
    for step in (160, 288):
        resumed = cli("train --resume run")
        assert resumed.code == 3
        assert resumed.out.startswith(f"resuming run at step {step:,}\n")
    # Scheduled checkpoints are every second iteration, so the one at 416 does not count.
    assert checkpoints.steps(Path("run"))[-1] == 416
    assert cli("train --resume run --exact").out.startswith("resuming run at step 288\n")


def test_ctrl_c_saves_also_when_it_ends_the_reader_of_the_pipe(tmp_path: Path) -> None:
    command = "import sys; from detent.cli import main; sys.exit(main())"
    words = split("train", TARGET, SMALL, "--steps 1_000_000 --eval.interval 1_000_000 --out", tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-c", command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            break
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (3, "")
    latest = checkpoints.read_state(checkpoints.locate(tmp_path / "run", "latest"))
    assert latest.step == read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"]


def test_what_goes_wrong_later_is_exit_code_1_and_one_sentence(cli: Detent, run: Path) -> None:
    outcome = cli("train", "Odd-v0", SMALL, "--out", "failed", "--env.kwargs", "happens=error", "at=50")
    assert outcome.code == 1
    assert outcome.err == (
        "detent train: environment 0 (Odd-v0) failed in step(): ZeroDivisionError: the motor is gone\n"
    )
    assert json.loads(Path("failed/run.json").read_text())["status"] == "failed"

    latest = checkpoints.locate(run, "latest")
    (latest / "policy.safetensors").write_bytes(b"garbage")
    outcome = cli("eval", run, "--checkpoint", latest.name, "--threads", 1)
    assert outcome == Outcome(
        1, "", f"detent eval: checkpoint {latest} is damaged: policy.safetensors does not match its hash\n"
    )
    again = cli("diagnose", run, "--checkpoint", latest.name)
    assert again == Outcome(outcome.code, "", outcome.err.replace("detent eval", "detent diagnose"))


def test_an_interrupt_is_exit_code_1(cli: Detent, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "diagnose", interrupted)
    assert cli("doctor") == Outcome(1, "", "detent doctor: interrupted\n")


# Reports.


def replay(run: Path, which: str, episodes: int, num_envs: int, seed: int, readout: Readout) -> NDArray[np.float64]:
    """Returns of whole episodes, played one environment after the other with the plain Gymnasium interface.

    Episodes all have 8 steps here, so the environments stay in step with each other.
    """
    import torch

    policy = detent.load(run, which)
    generator = torch.Generator().manual_seed(derive_seed(seed, "eval-act"))
    seeds = np.random.SeedSequence(derive_seed(seed, "eval-envs")).generate_state(num_envs)
    envs = [TargetEnv() for _ in range(num_envs)]
    observations = [env.reset(seed=int(one))[0] for env, one in zip(envs, seeds, strict=True)]
    returns = []
    for _ in range(episodes // num_envs):
        total = np.zeros(num_envs)
        for _ in range(8):
            actions = policy(np.stack(observations), readout, generator)
            steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            observations = [step[0].copy() for step in steps]
            total += [step[1] for step in steps]
        observations = [env.reset()[0] for env in envs]
        returns.append(total)
    return np.concatenate(returns)


def one_json(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    assert outcome.out.endswith("\n")
    return json.loads(outcome.out)


def test_eval_reports_what_an_independent_replay_earns(trained: Path, cli: Detent) -> None:
    report = one_json(cli("eval", trained, "--episodes 12 --envs 4 --seed 77 --threads 1 --json"))
    assert (report["run"], report["task"], report["variant"]) == (str(trained), TARGET, "rn-d")
    assert report["paper_score"] is None
    for readout, key in ROW_KEYS.items():
        returns = replay(trained, "best", 12, 4, 77, readout)
        found = report[key]
        assert found["return"] == pytest.approx(returns.mean(), rel=1e-6)
        assert found["std"] == pytest.approx(returns.std(ddof=1), rel=1e-6)
        assert (found["episodes"], found["length"], found["score"]) == (12, 8.0, None)
        low, high = found["ci95"]
        # The bootstrap interval is close to the normal one, 1.96 standard errors each side (n = 12, so loosely).
        half = 1.96 * returns.std(ddof=1) / np.sqrt(12)
        assert low == pytest.approx(returns.mean() - half, abs=0.5 * half)
        assert high == pytest.approx(returns.mean() + half, abs=0.5 * half)


def test_eval_takes_any_checkpoint(trained: Path, cli: Detent) -> None:
    flags = "--episodes 2 --threads 1 --json --checkpoint"
    rows = read_rows(trained / "evals.jsonl")[1:]
    best = max(rows, key=lambda row: row["stochastic"]["return"])["step"]
    assert one_json(cli("eval", trained, flags, "best"))["step"] == best
    assert one_json(cli("eval", trained, flags, "latest"))["step"] == 544
    for step in checkpoints.steps(trained):
        assert one_json(cli("eval", trained, flags, step))["step"] == step


def test_a_checkpoint_can_be_given_by_its_step_as_a_number(trained: Path, cli: Detent) -> None:
    first = checkpoints.steps(trained)[0]
    weights = [detent.load(trained, checkpoint=which).state_dict() for which in (first, str(first), "latest")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert any((weights[0][name] != weights[2][name]).any() for name in weights[0])
    assert one_json(cli("eval", trained, "--episodes 2 --threads 1 --json --checkpoint", first))["step"] == first
    with pytest.raises(ConfigError, match=f"has no checkpoint '17'; there are best, latest, {first}"):
        detent.load(trained, checkpoint=17)


def test_eval_repeats_its_numbers_and_another_seed_does_not(trained: Path, cli: Detent) -> None:
    flags = "--episodes 3 --threads 1 --json --seed"
    one, two, other = (cli("eval", trained, flags, seed).out for seed in (1, 1, 2))
    assert one == two != other


def test_eval_without_json_is_a_table(trained: Path, cli: Detent) -> None:
    outcome = cli("eval", trained, "--episodes 3 --threads 1 --checkpoint latest")
    assert outcome.code == 0
    for text in (
        f"{TARGET} · rn-d · step 544",
        "sampled",
        "most probable",
        "95% interval",
        "expected",
        "3 episodes each",
    ):
        assert text in outcome.out
    assert "\x1b" not in outcome.out


def test_draw_writes_the_diagram_and_lists_every_layer(trained: Path, tmp_path: Path, cli: Detent) -> None:
    outcome = cli("draw", trained, "--out", tmp_path / "figures" / "network", "--width 8.5cm")
    assert (outcome.code, outcome.err) == (0, "")
    for ending in ("svg", "pdf"):
        path = tmp_path / "figures" / f"network.{ending}"
        assert path.stat().st_size > 1000
        assert str(path) in outcome.out.splitlines()
    policy = detent.load(trained)
    total = sum(parameter.numel() for parameter in policy.parameters())
    assert outcome.out.splitlines()[-3].endswith(f"total {total:,}")
    for name in ("normalizer", "projection", "RegularizedNetwork", "LayerNorm", "CategoricalHead 41 bins", "action"):
        assert name in outcome.out


def test_draw_says_it_in_one_line_of_json_as_well(run: Path, cli: Detent) -> None:
    report = one_json(cli("draw", run, "--checkpoint latest --json"))
    assert report["files"] == [str(run / "network.svg"), str(run / "network.pdf")]
    assert (report["run"], report["task"], report["variant"], report["step"]) == (str(run), TARGET, "rn-d", 544)
    assert report["layers"][-2]["name"] == "critic_head"
    assert report["parameters"]["total"] == sum(layer["parameters"] for layer in report["layers"])


def test_draw_refuses_in_a_sentence(trained: Path, tmp_path: Path, cli: Detent) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "td3").mkdir()
    (tmp_path / "td3" / "config.toml").write_text('task = "Hopper-v4"\nvariant = "td3"\nalgo = "td3"\n')
    for words, why in (
        ([tmp_path], "is not a run directory: it has no config.toml"),
        ([trained, "--checkpoint 7"], "has no checkpoint '7'; there are best, latest"),
        ([trained, "--width wide"], "found 'wide'"),
        ([trained, "--out", tmp_path / "file" / "network"], "cannot be written (File exists); choose another --out"),
        ([tmp_path / "td3"], "is a td3 run, which has no Detent policy"),
    ):
        outcome = cli("draw", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("detent draw: ")
        assert why in outcome.err


def test_diagnose_reports_gradients_with_intervals_in_one_line_of_json(trained: Path, cli: Detent) -> None:
    report = one_json(cli("diagnose", trained, "--rollouts 5 --json"))
    assert (report["run"], report["task"], report["variant"]) == (str(trained), TARGET, "rn-d")
    # Five rollouts of 4 x 32 transitions in 4 minibatches each; episodes have 8 steps.
    assert (report["minibatches"], report["minibatch_size"], report["episodes"]) == (20, 32, 80)
    for name in ("grad_variance", "grad_variance_normalized", "grad_snr", "policy_grad_norm"):
        low, high = report[name]["ci95"]
        assert low < report[name]["estimate"] < high
    assert report["step"] == 544, "the latest checkpoint"
    assert one_json(cli("diagnose", trained, "--rollouts 5 --json --seed 0 --checkpoint 544")) == report
    assert one_json(cli("diagnose", trained, "--rollouts 5 --json --seed 1"))["return"] != report["return"]


def test_diagnose_without_json_is_a_table(trained: Path, cli: Detent) -> None:
    outcome = cli("diagnose", trained)
    assert (outcome.code, outcome.err) == (0, "")
    for text in (f"{TARGET} · rn-d · step 544", "signal-to-noise ratio", "95% interval", "minibatches 16 of 32"):
        assert text in outcome.out
    assert "\x1b" not in outcome.out


def test_proposition_holds_and_leaves_a_picture(cli: Detent) -> None:
    report = one_json(cli("proposition --samples 1000 --dimensions 2 --bins 5 --out deep/picture.png --json"))
    assert report["ok"]
    assert {check["relation"] for check in report["checks"]} == {"=", "<", ">"}
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")
    outcome = cli("proposition --samples 1000 --dimensions 2 --bins 5")
    assert outcome.code == 0
    assert "Every claim holds." in outcome.out
    assert Path("proposition.png").exists()


def test_a_proposition_that_does_not_hold_is_exit_code_1(cli: Detent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "detent.paper.gradient_moments.gaussian_closed_form", lambda sigma: 1.5 * float(sigma.pow(-2).sum())
    )
    outcome = cli("proposition --samples 1000 --dimensions 2 --bins 5")
    assert outcome.code == 1
    assert "Some claims do not hold" in outcome.out


def test_list_shows_what_there_is(cli: Detent) -> None:
    paper = {"rn-d", "rn-c", "mlp-d", "mlp-c", "loss-swap", "plain-d", "residual-d", "layernorm-d"}
    heads = {"bang-bang", "bang-off-bang", "rn-beta", "rn-coarse-fine", "rn-ordinal", "rn-smooth", "rn-squashed"}
    others = {"rn-unimodal", "simba-d", "simba-v2-d", "bronet-d", "custom", "td3"}
    assert set(one_json(cli("list", "variants", "--json"))) == paper | heads | others
    assert set(one_json(cli("list", "presets", "--json"))) == {"paper", "authors", "fast"}
    tasks = one_json(cli("list", "--json", "tasks"))
    assert set(tasks) >= {"Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Humanoid-v4", "Walker2d-v4", "PushCube-v1"}
    assert len(tasks) == 5 + 10
    shown = cli("list", "tasks").out
    for name, description in tasks.items():
        assert any(line.startswith(name) and line.endswith(description) for line in shown.splitlines())
    assert "package.module:EnvId-v0" in shown


def test_a_bare_list_shows_everything_with_headings_and_the_kinds_of_plugins(cli: Detent) -> None:
    everything = one_json(cli("list", "--json"))
    for what in ("tasks", "variants", "presets", "studies"):
        assert everything[what] == one_json(cli("list", what, "--json"))
    assert everything["plugins"] == list(REGISTRIES)
    outcome = cli("list")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    for what in ("tasks", "variants", "presets", "studies"):
        assert f"{what.capitalize()}:" in lines
        assert all(any(line.startswith(name) for line in lines) for name in everything[what])
    assert lines[-1] == f"Plug-ins, by detent list KIND: {', '.join(REGISTRIES)}"


def test_list_imports_a_module_first_and_shows_what_it_registers(cli: Detent, tmp_path: Path) -> None:
    (tmp_path / "here" / "my_loggers.py").write_text(
        "import detent\n@detent.register_logger('to-nowhere')\nclass Nowhere(detent.Callback):\n    'Forgets.'\n"
    )
    try:
        listed = one_json(cli("list loggers --plugins my_loggers --json"))
    finally:
        LOGGERS._registered.pop("to-nowhere", None)
    assert listed["to-nowhere"] == "Forgets."
    assert cli("list loggers --plugins nowhere").err.startswith(
        "detent list: the plug-in module 'nowhere' cannot be imported: ModuleNotFoundError"
    )


def test_doctor_reports_in_one_line_of_json(cli: Detent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: [doctor.Check("python", True, "3.11")])
    assert one_json(cli("doctor", "--json"))["checks"][0]["name"] == "python"
    monkeypatch.setattr(doctor, "diagnose", lambda: [doctor.Check("torch", False, "gone", "install it")])
    outcome = cli("doctor", "--json")
    assert (outcome.code, json.loads(outcome.out)["ok"]) == (1, False)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("PickCube-v1 --scale gpu", ("gpu", 4096, 4, "state", 256)),
        ("PickCube-v1 --env.backend physx_cpu", ("cpu", 16, 128, "state", 256)),
        ("PickCube-v1 --obs rgb --device cuda", ("gpu", 1024, 16, "rgb", 512)),
        ("PickCube-v1 --obs rgb+state --scale gpu --envs 8", ("gpu", 8, 16, "rgb+state", 512)),
    ],
)
def test_flags_choose_the_settings_of_a_maniskill_task(words: str, found: tuple[Any, ...]) -> None:
    config = parse_train(words.split()).settings
    assert (config.scale, config.env.num_envs, config.rollout_steps, config.env.obs, config.critic.width) == found


def test_a_maniskill_runs_own_file_repeats_it(tmp_path: Path) -> None:
    config = parse_train(["PushT-v1", "--obs", "rgb+state", "--scale", "cpu", "--update.epochs", "3"]).settings
    save_config(config, tmp_path / "config.toml")
    assert parse_train(["--config", str(tmp_path / "config.toml")]).settings == config
