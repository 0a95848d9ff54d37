"""A package from outside, pip-installed: a head, trunk, encoder, critic, loss, update rule, simulator and logger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = (
    "--env.num-envs 4 --rollout-steps 32 --update.minibatches 4 --update.epochs 2 --width 16 --threads 1 "
    "--eval.episodes 2 --checkpoint.interval 256"
)
ALL = (
    "PointMass --env.backend point-mass --env.options length=16 --variant custom --head.kind laplace "
    "--head.options log_scale=-0.5 --actor.kind swish --critic.kind swish --critic.head huber "
    "--critic.head-options delta=0.5 --update.value-clip 0 --encoder.kind fourier --log csv"
)


ONE_PROCESS = """
import contextlib, io, json, sys
from detent.cli import main
said = []
for command in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = main(command.split())
    said.append((code, text.getvalue()))
print(json.dumps(said))
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment that has Detent and the plug-ins, and a directory to work in."""

    python: Path
    directory: Path

    def run(self, *words: str | Path, code: int = 0) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, *words],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def detent(self, command: str, code: int = 0) -> str:
        return self.run("-m", "detent", *command.split(), code=code)

    def commands(self, commands: list[str]) -> list[tuple[int, str]]:
        """Run several commands in one process: exit codes, and what was said."""
        found: list[tuple[int, str]] = json.loads(self.run("-c", ONE_PROCESS, json.dumps(commands)).splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("installed")
    source = base / "source"
    shutil.copytree(ROOT / "examples" / "plugins", source, ignore=shutil.ignore_patterns("*.egg-info", "build"))
    python = base / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "venv"], check=True, timeout=120)
    (site,) = (base / "venv").rglob("site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join([*borrowed, str(ROOT / "src")]))
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(source)]
    subprocess.run(pip, check=True, timeout=300, cwd=base)
    work = base / "work"
    work.mkdir()
    return Installed(python, work)


def test_each_plugin_is_listed(installed: Installed) -> None:
    names = {
        "heads": "laplace",
        "trunks": "swish",
        "encoders": "fourier",
        "critics": "huber",
        "losses": "kl-penalty",
        "update-rules": "reinforce",
        "simulators": "point-mass",
        "loggers": "csv",
    }
    said = installed.commands([f"list {what} --json" for what in names])
    for (code, text), name in zip(said, names.values(), strict=True):
        assert code == 0
        assert json.loads(text)[name], f"{name} has a description"


@pytest.fixture(scope="module")
def finished(installed: Installed) -> str:
    """A run with every plug-in."""
    return installed.detent(f"train {ALL} --algo kl-penalty --update.options beta=0.3 --steps 1024 {SMALL} --out whole")


def rows(run: Path) -> list[dict[str, object]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def test_a_run_trains_with_all_of_them_and_says_why_it_is_slower(installed: Installed, finished: str) -> None:
    assert "autograd engine: the loss 'kl-penalty' has no accelerated form" in finished
    run = installed.directory / "whole"
    assert "penalty" in rows(run)[-1], "the loss's own metric is logged"
    returns = (run / "returns.csv").read_text().splitlines()
    assert len(returns) == len(rows(run)), "the logger got every row"


def test_a_run_resumes_to_the_bit(installed: Installed, finished: str) -> None:
    whole = installed.directory / "whole"
    cut = installed.directory / "cut"
    shutil.copytree(whole, cut)
    steps = sorted(int(path.name) for path in (cut / "checkpoints").iterdir() if path.name.isdigit())
    kinds = {step: json.loads((cut / f"checkpoints/{step}/state.json").read_text())["kind"] for step in steps}
    first = next(step for step in steps if kinds[step] == "scheduled")
    for step in steps:
        if step > first:
            shutil.rmtree(cut / "checkpoints" / str(step))
    said = installed.detent("train --resume cut --exact")
    assert f"resuming cut at step {first}" in said.replace(",", "")
    assert rows(cut) == rows(whole)


def test_a_run_loads_evaluates_and_is_diagnosed(installed: Installed, finished: str) -> None:
    code = "import detent, numpy; print(detent.load('whole')(numpy.zeros(2)).shape)"
    assert installed.run("-c", code).endswith("(1,)\n")
    report = json.loads(installed.detent("eval whole --episodes 2 --json").splitlines()[-1])
    assert report["stochastic"]["length"] == 16
    assert "grad_snr" in installed.detent("diagnose whole --rollouts 4 --json")


def test_trpo_trains_a_head_that_has_neither_kl_nor_fisher_product(installed: Installed) -> None:
    installed.detent(f"train {ALL} --algo trpo --steps 512 {SMALL} --out trpo")
    last = rows(installed.directory / "trpo")[-1]
    kl = last["kl"]
    assert isinstance(kl, float)
    bound = tomllib.loads((installed.directory / "trpo" / "config.toml").read_text())["trpo"]["max_kl"]
    assert 0 < kl <= bound, "the step stays in the trust region, measured by the sampled KL"


def test_a_whole_update_rule_trains(installed: Installed) -> None:
    said = installed.detent(f"train {ALL} --algo reinforce --steps 512 {SMALL} --out reinforce")
    assert "reinforce: one gradient step per iteration" in said


def test_a_study_sweeps_them_on_a_task_of_the_simulator(installed: Installed) -> None:
    (installed.directory / "heads.toml").write_text("""
tasks = ["PointMass"]
variants = ["custom"]
steps = 256
settings = { env.num_envs = 4, rollout_steps = 32, update.minibatches = 4, actor.width = 8, eval.episodes = 2 }
[[grid]]
settings = { env.backend = "point-mass" }
sweep = { head.kind = ["categorical", "laplace"] }
""")
    installed.detent("study run heads.toml --out study --workers 1")
    counts = json.loads(installed.detent("study status study --json").splitlines()[-1])["counts"]
    assert counts["finished"] == 2


REFUSED = {
    "--head.kind laplas": "did you mean laplace",
    "--head.kind laplace --head.options width=3": "unknown setting 'head.options.width'",
    "--head.kind laplace --head.options log_scale=big": "head.options.log_scale is 'big'; it must be float",
    "--head.options temperature=2": "head 'categorical' takes no options",
    "--critic.head huber --update.value-clip 0.2": "update.value_clip is 0.2, and the critic 'huber' cannot clip",
    "--head.kind detent_example_plugins.heads:Nothing": "cannot be imported",
    "--head.kind detent_example_plugins.trunks:SwishTrunk": "must subclass detent.Head",
    "--head.kind laplace --update.engine accelerated": "the head LaplaceHead has no accelerated form",
    "--algo kl-penaltyy": "did you mean kl-penalty",
    "--log tensorbord": "did you mean tensorboard",
    "--env.backend point-mas": "did you mean point-mass",
    "--plugins no_such_module": "the plug-in module 'no_such_module' cannot be imported",
}


def test_wrong_names_and_options_are_sentences_and_leave_nothing_behind(installed: Installed) -> None:
    train = "train detent.envs.scripted:Target-v0 --variant custom --out refused"
    said = installed.commands([f"{train} {flags}" for flags in REFUSED])
    for (flags, sentence), (code, text) in zip(REFUSED.items(), said, strict=True):
        assert code == 2, flags
        assert sentence in text, flags
    assert not (installed.directory / "refused").exists()
