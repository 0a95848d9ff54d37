"""Callbacks: when a run calls them, what they may ask of it, and that a curriculum resumes to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import detent
from detent.envs.scripted import TargetEnv
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"


class CrashError(Exception):
    """Ends a run without a word, as a kill would."""


class Shifted(TargetEnv):
    """The target task with rewards shifted by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = 0.0
        self.levels: list[int] = []

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        # Its own list, which it may change.
        self.levels.append(0)
        return observation, reward + self.shift, terminated, truncated, info


gymnasium.register("Shifted-v0", entry_point=f"{__name__}:Shifted", max_episode_steps=8)


def small(settings: Mapping[str, Any] | None = None, task: str = "Shifted-v0") -> detent.Config:
    """10 iterations of 4 x 16 steps after 16 random steps, with a scheduled checkpoint every third."""
    few = {"steps": 656, "schedule_steps": 656, "rollout_steps": 16, "env.num_envs": 4, "threads": 1, "actor.width": 8}
    few |= {"update.minibatches": 2, "update.epochs": 1, "normalize.warmup_steps": 4, "eval.episodes": 2}
    few |= {"eval.interval": 320, "checkpoint.interval": 192, "eval.deploy_episodes": 2}
    return detent.configure(task, overrides={**few, **(settings or {})})


class Recorder(detent.Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_run_start(self, run: detent.RunContext) -> None:
        self.calls.append(("start", run.step, run.iteration))

    def on_rollout(self, run: detent.RunContext, rollout: Any) -> None:
        self.calls.append(("rollout", run.step, tuple(rollout.reward.shape)))

    def on_update(self, run: detent.RunContext, metrics: dict[str, Any]) -> None:
        self.calls.append(("update", run.step, "policy_loss" in metrics))

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        self.calls.append(("iteration", run.step, row["step"]))

    def on_evaluation(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        self.calls.append(("evaluation", run.step, sorted(row.keys() & {"stochastic", "deterministic", "mean"})))

    def on_checkpoint(self, run: detent.RunContext, path: Path, kind: str) -> None:
        self.calls.append(("checkpoint", run.step, path.name, kind))

    def on_run_end(self, run: detent.RunContext, status: str) -> None:
        self.calls.append(("end", run.step, status))


def test_a_run_calls_its_callbacks_in_this_order(tmp_path: Path) -> None:
    recorder = Recorder()
    detent.train(small({"steps": 144, "checkpoint.interval": 128}), out=tmp_path / "run", callbacks=[recorder])
    readouts = ["deterministic", "mean", "stochastic"]
    one = [("rollout", 16, (16, 4)), ("update", 80, True), ("iteration", 80, 80)]
    two = [("rollout", 80, (16, 4)), ("update", 144, True), ("iteration", 144, 144)]
    assert recorder.calls == [
        ("start", 16, 0),
        ("evaluation", 16, readouts),
        *one,
        *two,
        ("evaluation", 144, readouts),
        ("checkpoint", 144, "144", "scheduled"),
        ("end", 144, "finished"),
    ]


class StopAt(detent.Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        if row["step"] >= self._step:
            run.stop("it is good enough")


def test_a_callback_stops_a_run_with_a_checkpoint_and_its_reason(tmp_path: Path) -> None:
    recorder = Recorder()
    result = detent.train(small(), out=tmp_path / "run", callbacks=[StopAt(200), recorder])
    assert (result.finished, result.step, result.reason) == (False, 208, "it is good enough")
    assert recorder.calls[-1] == ("end", 208, "stopped")
    assert checkpoints.steps(tmp_path / "run") == [208]
    assert checkpoints.read_state(tmp_path / "run" / "checkpoints" / "208").readout is not None, "chosen all the same"
    assert detent.resume(tmp_path / "run").finished


class StopAfterWorseEvaluations(detent.Callback):
    """Counts evaluations, with a state of its own that a checkpoint keeps."""

    def __init__(self) -> None:
        self.seen = 0

    def on_evaluation(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        self.seen += 1

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


def test_the_state_of_a_callback_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    first, other = StopAfterWorseEvaluations(), StopAfterWorseEvaluations()
    other.seen = 100
    detent.train(small(), out=tmp_path / "run", callbacks=[first, other, StopAt(400)])
    assert (first.seen, other.seen) == (2, 102)
    again = [StopAfterWorseEvaluations(), StopAfterWorseEvaluations()]
    detent.resume(tmp_path / "run", callbacks=again)
    assert [callback.seen for callback in again] == [3, 103], "one more evaluation, at the end"


class Curriculum(detent.Callback):
    """Shifts rewards further after every iteration, from where the run is."""

    def on_run_start(self, run: detent.RunContext) -> None:
        run.set_env(shift=1.0)

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        run.set_env(shift=run.env_attributes["shift"] + 1.0)


class CrashAt(detent.Callback):
    def __init__(self, iteration: int) -> None:
        self._iteration = iteration

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        if run.iteration == self._iteration:
            raise CrashError


@pytest.mark.parametrize("processes", [False, True])
def test_a_curriculum_changes_the_environments_and_resumes_to_the_bit(processes: bool, tmp_path: Path) -> None:
    # A worker process must be able to import its environment.
    config = small({"env.processes": processes}, f"{__name__}:Shifted-v0")
    detent.train(config, out=tmp_path / "whole", callbacks=[Curriculum()])
    whole = rows(tmp_path / "whole", "metrics")
    # The shift that each iteration's rollout had, and rewards of at least minus 2 x .9^2 a step, plus the shift.
    assert [row["env/shift"] for row in whole] == [float(number) for number in range(1, 11)]
    returns = [row["return"] for row in whole]
    assert all(8 * (number - 1.62) <= value <= 8 * number for number, value in enumerate(returns, start=1)), returns
    evaluations = read_rows(tmp_path / "whole" / "evals.jsonl")
    assert all(row["stochastic"]["return"] <= 0 for row in evaluations), "evaluation keeps the task as it is"

    with pytest.raises(CrashError):
        detent.train(config, out=tmp_path / "cut", callbacks=[Curriculum(), CrashAt(8)])
    result = detent.resume(tmp_path / "cut", callbacks=[Curriculum()], trust=True)
    assert result.finished
    assert rows(tmp_path / "cut", "metrics") == whole
    assert rows(tmp_path / "cut", "evals") == rows(tmp_path / "whole", "evals")
    last = checkpoints.steps(tmp_path / "whole")[-1]
    for name in ("policy", "trainer"):
        files = [tmp_path / run / "checkpoints" / str(last) / f"{name}.safetensors" for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    found = read_rows(run / f"{name}.jsonl")
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]


class Sets(detent.Callback):
    """Sets an attribute at an event of its choice."""

    def __init__(self, event: str, **attributes: Any) -> None:
        def called(run: detent.RunContext, *arguments: Any) -> None:
            run.set_env(**attributes)

        setattr(self, event, called)


@pytest.mark.parametrize(
    ("callback", "sentence"),
    [
        (
            Sets("on_iteration", shfit=1.0),
            r"\(Shifted-v0\) has no attribute 'shfit' to set; did you mean shift",
        ),
        (Sets("on_iteration", shift=object()), "which checkpoints cannot record; use numbers, text"),
        (Sets("on_iteration", shift=(1, 2)), "which checkpoints cannot record"),
        (Sets("on_checkpoint", shift=1.0), "where no checkpoint would record it; call it in on_iteration"),
    ],
)
def test_attributes_that_cannot_be_set_are_refused(callback: detent.Callback, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        detent.train(small(), out=tmp_path / "run", callbacks=[callback])


def test_environments_without_attributes_say_so(tmp_path: Path) -> None:
    config = small({"env.backend": "envpool"}, "Hopper-v4")
    with pytest.raises(ConfigError, match=r"Hopper-v4 \(envpool\) have no attributes .* use --env.backend gymnasium"):
        detent.train(config, out=tmp_path / "run", callbacks=[Sets("on_run_start", frame_skip=2)])


class Divided:
    """Environments that several processes share, and that have attributes."""

    config = small({"update.processes": 2})
    iteration, step = 0, 0

    def __init__(self) -> None:
        self.envs: Any = self
        self.spec, self.num_envs = None, 4

    def reset(self, seed: int) -> None: ...
    def close(self) -> None: ...
    def part(self, rows: slice, threads: int) -> None: ...
    def set_attributes(self, attributes: Mapping[str, Any]) -> None: ...


def test_attributes_of_environments_in_several_processes_are_refused(tmp_path: Path) -> None:
    run = detent.RunContext(Divided(), tmp_path, None, lambda: 0.0)
    with pytest.raises(ConfigError, match=r"are divided among processes, .* use --update.processes 1"):
        run.set_env(shift=1.0)


class Interrupted(detent.Callback):
    def on_run_end(self, run: detent.RunContext, status: str) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_at_the_very_end_still_releases_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        detent.train(small({"steps": 144}), out=tmp_path / "run", callbacks=[Interrupted()])
    assert (tmp_path / "run" / "lock").read_text() == ""


def test_a_class_or_a_function_among_the_callbacks_is_refused(tmp_path: Path) -> None:
    given: Any = StopAt
    with pytest.raises(ConfigError, match=r"which is not a detent.Callback \(give an instance, not the class\)"):
        detent.train(small(), out=tmp_path / "run", callbacks=[given])


class Misspelt(detent.Callback):
    def on_iter(self, run: detent.RunContext, row: dict[str, Any]) -> None: ...


def test_a_method_that_no_run_calls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a method on_iter, which no run calls; did you mean on_iteration"):
        detent.train(small(), out=tmp_path / "run", callbacks=[Misspelt()])


def test_a_callback_without_its_list_is_refused(tmp_path: Path) -> None:
    alone: Any = StopAt(200)
    with pytest.raises(ConfigError, match="callbacks takes a list"):
        detent.train(small(), out=tmp_path / "run", callbacks=alone)


class Broken(detent.Callback):
    """Fails in one of its methods."""

    def __init__(self, event: str) -> None:
        def fail(*arguments: Any) -> None:
            raise OSError("the disk is full")

        setattr(self, event, fail)


def test_a_callback_that_fails_ends_the_run_and_every_callback_is_told(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(OSError, match="the disk is full") as raised:
        detent.train(small(), out=tmp_path / "run", callbacks=[Broken("on_update"), recorder])
    assert raised.value.__notes__ == ["raised in on_update of the callback Broken"]
    assert recorder.calls[-1] == ("end", 80, "failed")


def test_a_failure_at_the_end_does_not_undo_a_finished_run(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.warns(UserWarning, match="on_run_end of Broken failed .*the disk is full"):
        result = detent.train(small(), out=tmp_path / "run", callbacks=[Broken("on_run_end"), recorder])
    assert result.finished
    assert recorder.calls[-1] == ("end", 656, "finished")


class BrokenLogger(detent.Callback):
    """Fails in the method that its option names."""

    @dataclass(frozen=True)
    class Options:
        event: str = "on_iteration"

    def __init__(self, options: Options) -> None:
        def fail(*arguments: Any) -> None:
            raise ConnectionError("the server is away")

        setattr(self, options.event, fail)


EVENTS = ("on_run_start", "on_rollout", "on_update", "on_iteration", "on_evaluation", "on_checkpoint", "on_run_end")


@pytest.mark.parametrize("event", [*EVENTS, "on_message"])
def test_a_logger_that_fails_costs_its_rows_and_nothing_else(event: str, tmp_path: Path) -> None:
    name = f"{__name__}:BrokenLogger"
    config = small({"log": [name], "log_options": {name: {"event": event}}})
    with pytest.warns(UserWarning, match="BrokenLogger failed .*the server is away") as caught:
        result = detent.train(config, out=tmp_path / "run")
    assert len(caught) == 1
    assert result.finished
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 10


class Needy(detent.Callback):
    def __init__(self, something: int) -> None: ...


def test_a_callback_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callback '.*:Needy' cannot be made: TypeError: .*something"):
        detent.train(small({"callbacks": [f"{__name__}:Needy"]}), out=tmp_path / "run")


class BadState(detent.Callback):
    def state(self) -> dict[str, Any]:
        return {"seen": object()}


def test_a_state_that_cannot_be_saved_is_found_before_the_first_iteration(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(RuntimeError, match=r"the state of the callback BadState is .* cannot record"):
        detent.train(small(), out=tmp_path / "run", callbacks=[recorder, BadState()])
    assert [call[0] for call in recorder.calls] == ["start", "end"]


def test_a_run_resumed_without_its_callbacks_says_so_and_keeps_their_states(tmp_path: Path) -> None:
    first = StopAfterWorseEvaluations()
    detent.train(small(), out=tmp_path / "run", callbacks=[first, Curriculum(), StopAt(200)])
    with pytest.warns(UserWarning, match="resumed without callbacks that it had: StopAfterWorseEvaluations"):
        detent.resume(tmp_path / "run", callbacks=[StopAt(400)])
    state = checkpoints.read_state(checkpoints.locate(tmp_path / "run", "latest"))
    assert state.callbacks == {"StopAfterWorseEvaluations": {"seen": 1}}
    assert state.env_attributes == {"shift": 4.0}
    with pytest.warns(UserWarning, match="resumed without callbacks"):
        assert detent.resume(tmp_path / "run").finished


class Numbers(detent.Callback):
    """Sets what NumPy computes, and a list that it goes on changing."""

    def __init__(self) -> None:
        self.levels = [1]

    def on_iteration(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        run.set_env(shift=np.interp(run.iteration, [0, 10], [0.0, 1.0]), levels=self.levels)
        self.levels.append(1)
        assert type(run.env_attributes["shift"]) is float
        assert len(run.env_attributes["levels"]) == run.iteration


def test_environments_get_copies_of_what_the_checkpoint_records(tmp_path: Path) -> None:
    detent.train(small(), out=tmp_path / "run", callbacks=[Numbers()])
    state = checkpoints.read_state(checkpoints.locate(tmp_path / "run", "latest"))
    assert state.env_attributes == {"shift": 1.0, "levels": [1] * 10}


class Vandal(detent.Callback):
    """Changes what it is given."""

    def on_update(self, run: detent.RunContext, metrics: dict[str, Any]) -> None:
        metrics.clear()

    def on_evaluation(self, run: detent.RunContext, row: dict[str, Any]) -> None:
        row["stochastic"].clear()


def test_a_callback_cannot_change_the_rows_of_the_run(tmp_path: Path) -> None:
    for name, callbacks in (("usual", []), ("changed", [Vandal()])):
        detent.train(small(), out=tmp_path / name, callbacks=callbacks)
    for rows_of in ("metrics", "evals"):
        assert rows(tmp_path / "usual", rows_of) == rows(tmp_path / "changed", rows_of)


def test_a_callback_by_import_path_is_part_of_the_run(tmp_path: Path) -> None:
    config = small({"callbacks": [f"{__name__}:Curriculum"]})
    detent.train(config, out=tmp_path / "run", callbacks=[StopAt(400)])
    with pytest.raises(ConfigError, match=f"refers to {__name__}:Curriculum.*--trust"):
        detent.resume(tmp_path / "run")
    assert detent.resume(tmp_path / "run", trust=True).finished
    shifts = [row["env/shift"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert shifts == [float(number) for number in range(1, 11)]
    # Acting needs no callback, and so no trust.
    assert detent.load(tmp_path / "run").readout in ("mode", "mean")
    assert detent.evaluate_run(tmp_path / "run", episodes=2)["step"] == 656
