"""Plug-ins registered by decorator and by import path, and what a stranger's files may import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import detent
from detent.cli import main
from detent.errors import ConfigError
from detent.models.heads import HEADS
from detent.models.heads.categorical import CategoricalHead
from detent.registry import Registry
from detent.study.directory import plan_path, write_study
from detent.study.plan import make_study
from detent.study.process import train_words

TARGET = "detent.envs.scripted:Target-v0"
SMALL = {
    "steps": 256,
    "env.num_envs": 4,
    "rollout_steps": 32,
    "update.minibatches": 4,
    "update.epochs": 1,
    "actor.width": 8,
    "eval.episodes": 2,
    "threads": 1,
}
MODULE = """
import detent
from pathlib import Path
from detent.models.heads.categorical import CategoricalHead

Path({trace!r}).write_text("imported")

@detent.register_head("{name}")
class Warm(CategoricalHead):
    \"\"\"A categorical head at twice the temperature.\"\"\"
    def forward(self, outputs):
        return super().forward(outputs / 2)
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `warm_heads` beside the runs; the file tells whether it was imported."""
    path = tmp_path / "imported"
    (tmp_path / "warm_heads.py").write_text(MODULE.format(trace=str(path), name="warm"))
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    forget()


def forget() -> None:
    """Make this process like another one, which never imported the plug-in."""
    sys.modules.pop("warm_heads", None)
    HEADS._registered.pop("warm", None)


def train(tmp_path: Path, **overrides: object) -> Path:
    config = detent.configure(TARGET, variant="custom", overrides={**SMALL, **overrides})
    return detent.train(config, out=tmp_path / "run").path


def test_a_decorator_registers_a_head_and_the_run_remembers_its_module(trace: Path, tmp_path: Path) -> None:
    run = train(tmp_path, plugins=["warm_heads"], **{"head.kind": "warm"})
    assert 'engine = "autograd"' in (run / "config.toml").read_text(), "a subclass may compute something else"
    assert type(detent.load(run).head).__name__ == "Warm", "known in this process, so no trust is needed"


def test_the_module_is_recorded_where_the_program_imported_it_by_itself(trace: Path, tmp_path: Path) -> None:
    __import__("warm_heads")
    run = train(tmp_path, **{"head.kind": "warm"})
    assert 'plugins = [\n    "warm_heads",\n]' in (run / "config.toml").read_text()


@pytest.mark.parametrize("by", ["decorator", "path"])
def test_what_a_runs_files_name_is_imported_only_with_trust(by: str, trace: Path, tmp_path: Path) -> None:
    if by == "decorator":
        run = train(tmp_path, plugins=["warm_heads"], **{"head.kind": "warm"})
    else:
        run = train(tmp_path, **{"head.kind": "warm_heads:Warm"})
    forget()
    trace.unlink()
    for refused in (
        lambda: detent.load(run),
        lambda: detent.resume(run, steps=512),
    ):
        with pytest.raises(ConfigError, match=r"importing that runs its code; if you trust it, pass --trust"):
            refused()
    for command in (
        f"eval {run} --episodes 1",
        f"diagnose {run}",
        f"video {run}",
        f"train --resume {run} --steps 512",
        f"train --config {run}/config.toml --out {tmp_path}/again",
        f"train {TARGET} --variant custom --init-from {run} --out {tmp_path}/tuned",
    ):
        assert main(command.split()) == 2, command
    assert not trace.exists(), "nothing was imported"
    assert detent.load(run, trust=True)(np.zeros(2)).shape == (2,)
    assert trace.exists()
    forget()
    assert main(f"eval {run} --episodes 1 --trust".split()) == 0
    forget()
    assert main(f"train --resume {run} --steps 512 --trust".split()) == 0


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('algo = "ppo"', 'algo = "detent.threads:os.getcwd"'),
        ("log = []", 'log = ["detent.threads:os.getcwd"]'),
        ("wrappers = []", 'wrappers = ["detent.threads:os.fspath"]'),
        ('backend = "gymnasium"', 'backend = "detent.threads:os.getcwd"'),
        ('kind = "categorical"', 'kind = "detent.threads:os.getcwd"'),
    ],
)
def test_a_path_through_detents_own_modules_needs_trust_too(was: str, now: str, tmp_path: Path) -> None:
    """A module of Detent leads to everything that it imports."""
    run = train(tmp_path)
    text = (run / "config.toml").read_text()
    assert was in text
    (run / "config.toml").write_text(text.replace(was, now))
    with pytest.raises(ConfigError, match="pass --trust"):
        detent.resume(run, steps=512)


def test_a_task_that_a_runs_files_name_is_imported_only_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium\nfrom detent.envs.scripted import TargetEnv\n"
        "gymnasium.register('Own-v0', entry_point=TargetEnv, max_episode_steps=8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = detent.configure("own_envs:Own-v0", overrides=SMALL)
    run = detent.train(config, out=tmp_path / "run").path
    assert detent.load(run)(np.zeros(2)).shape == (2,), "a policy needs no environment"
    assert main(f"eval {run} --episodes 1".split()) == 2
    assert main(f"train --resume {run} --steps 512".split()) == 2
    assert main(f"eval {run} --episodes 1 --trust".split()) == 0


def test_a_head_of_the_program_itself_loads_in_it_and_says_what_another_needs(tmp_path: Path) -> None:
    class Own(CategoricalHead):
        pass

    # As a script does, whose module is called __main__.
    exec("detent.register_head('own')(Own)", {"__name__": "__main__", "detent": detent, "Own": Own})
    try:
        run = train(tmp_path, **{"head.kind": "own"})
        assert type(detent.load(run).head) is Own
    finally:
        del HEADS._registered["own"]
    with pytest.raises(ConfigError, match="there is no head of that name"):
        detent.load(run)


def test_the_module_that_registers_is_recorded_not_the_one_that_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_party.py").write_text(
        "from detent.models.heads.categorical import CategoricalHead\nclass Third(CategoricalHead):\n    pass\n"
    )
    (tmp_path / "registering.py").write_text(
        "import detent, third_party\ndetent.register_head('third')(third_party.Third)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    __import__("registering")
    try:
        run = train(tmp_path, **{"head.kind": "third"})
    finally:
        del HEADS._registered["third"]
        for name in ("registering", "third_party"):
            del sys.modules[name]
    try:
        assert type(detent.load(run, trust=True).head).__name__ == "Third"
    finally:
        del HEADS._registered["third"]


class Summed(CategoricalHead):
    """The usual slip: one log-probability for all dimensions."""

    def log_prob(self, params: Tensor, choice: Tensor) -> Tensor:
        return super().log_prob(params, choice).sum(-1)


class Flat(CategoricalHead):
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs


class Outside(CategoricalHead):
    def to_action(self, choice: Tensor) -> Tensor:
        return super().to_action(choice) + 100


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (Summed, r"Summed.log_prob returned shape \[3\] for 3 states; it must be \[3, 2\]"),
        (Flat, r"Flat.forward returned shape \[3, 82\] for 3 states; it must be \[3, 2, P\]"),
        (Outside, "outside the action's bounds"),
    ],
)
def test_a_head_of_the_wrong_shapes_is_refused(head: type[CategoricalHead], sentence: str, tmp_path: Path) -> None:
    detent.register_head("wrong")(head)
    try:
        with pytest.raises(ConfigError, match=sentence):
            train(tmp_path, **{"head.kind": "wrong"})
    finally:
        del HEADS._registered["wrong"]


def test_options_of_a_logger_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log_options has 'tensorbord', which is none of the run's loggers"):
        train(tmp_path, log=["tensorboard"], log_options={"tensorbord": {"x": 1}})


def test_a_study_trusts_a_runs_files_only_as_far_as_its_plan(tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "steps"}
    study = make_study("mine", {"tasks": [TARGET], "variants": ["rn-d"], "settings": settings, "steps": 256})
    (entry,) = write_study(tmp_path, study)
    run = tmp_path / entry["path"]
    run.mkdir(parents=True)
    (run / "config.toml").write_text(plan_path(tmp_path, entry["id"]).read_text())
    assert train_words(tmp_path, entry)[-1] == "--trust"
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("log = []", 'log = ["evil:boom"]'))
    assert "--trust" not in train_words(tmp_path, entry)


def test_names_that_cannot_be_registered_are_refused() -> None:
    with pytest.raises(ConfigError, match="is a built-in head"):
        detent.register_head("categorical")(CategoricalHead)
    for register, name in (
        (detent.register_loss, "trpo"),
        (detent.register_update_rule, "ppo"),
        (detent.register_simulator, "auto"),
    ):
        with pytest.raises(ConfigError, match="choose another name"):
            register(name)(CategoricalHead)
    with pytest.raises(ConfigError, match="a colon is for import paths"):
        detent.register_head("a:b")(CategoricalHead)
    with pytest.raises(ConfigError, match=r"must subclass detent\.Head"):
        detent.register_head("dict")(dict)


def test_an_entry_point_that_cannot_be_imported_is_a_sentence_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("head", "nobody.heads", {"gone": "detent.no_such_module:Head"})
    assert "cannot be imported" in registry.describe()["gone"]
