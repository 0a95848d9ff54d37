"""The readout that a finished run's best checkpoint remembers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import detent
from detent.envs import Step, VectorEnv, make_envs
from detent.envs.base import Episode
from detent.models import checkpoints
from detent.seeding import derive_seed
from detent.spec import ActionSpec, EnvSpec, Observation, ObservationSpec
from detent.training.evaluate import ROW_KEYS, evaluate
from detent.training.run_directory import read_rows

TARGET = "detent.envs.scripted:Target-v0"


def small(settings: dict[str, Any] | None = None, variant: str = "rn-d") -> detent.Config:
    few = {"steps": 272, "schedule_steps": 272, "rollout_steps": 16, "env.num_envs": 4, "threads": 1, "actor.width": 8}
    few |= {"update.minibatches": 2, "update.epochs": 1, "normalize.warmup_steps": 4, "eval.episodes": 4}
    return detent.configure(TARGET, variant=variant, overrides={**few, "eval.interval": 128, **(settings or {})})


def readouts(run: Path) -> dict[int, str | None]:
    return {step: checkpoints.read_state(checkpoints.directory(run, step)).readout for step in checkpoints.steps(run)}


def test_the_best_checkpoint_remembers_what_a_hundred_new_episodes_found_better(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small(), out=run)
    found = json.loads((run / "run.json").read_text())["readout"]
    policy, state, config = checkpoints.load_policy(run, "best")
    assert found["step"] == state.step
    assert found["deterministic"]["episodes"] == found["mean"]["episodes"] == 100
    # The same episodes again, by hand.
    envs = make_envs(TARGET, config.env, 4, 1)
    for readout in ("mode", "mean"):
        seed = derive_seed(config.seed, "deploy", state.step)
        assert evaluate(policy, envs, 100, seed, readout).summary(TARGET) == found[ROW_KEYS[readout]]
    envs.close()
    better = "mean" if found["mean"]["return"] > found["deterministic"]["return"] else "mode"
    assert found["readout"] == policy.readout == state.readout == better
    # On this task a policy that knows nothing does best in the middle, which is its expected action.
    assert better == "mean"
    observation = np.zeros((5, 2), np.float32)
    np.testing.assert_array_equal(detent.load(run)(observation), policy(observation, "mean"))


@pytest.mark.parametrize("readout", ["sample", "mode", "mean"])
def test_a_configured_readout_is_remembered_without_episodes(readout: str, tmp_path: Path) -> None:
    detent.train(small({"eval.deploy": readout}), out=tmp_path / "run")
    assert detent.load(tmp_path / "run").readout == readout
    assert "readout" not in json.loads((tmp_path / "run" / "run.json").read_text())


def test_a_gaussian_has_one_readout_for_both_and_measures_nothing(tmp_path: Path) -> None:
    detent.train(small(variant="mlp-c"), out=tmp_path / "run")
    assert detent.load(tmp_path / "run").readout == "mode"
    rows = read_rows(tmp_path / "run" / "evals.jsonl")
    assert all(row["mean"] == row["deterministic"] for row in rows)


def test_a_run_killed_while_it_chooses_chooses_when_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small(), out=run)
    chosen, told = readouts(run), json.loads((run / "run.json").read_text())
    best = checkpoints.read_state(checkpoints.locate(run, "best")).step
    # As a kill leaves it: all checkpoints written, no readout chosen, and the status still running.
    state = run / "checkpoints" / str(best) / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "readout": None}))
    killed = {key: value for key, value in told.items() if key != "readout"} | {"status": "running"}
    (run / "run.json").write_text(json.dumps(killed))
    result = detent.resume(run)
    assert (result.finished, result.step) == (True, 272)
    assert readouts(run) == chosen
    again = json.loads((run / "run.json").read_text())
    assert (again["status"], again["readout"]) == ("finished", told["readout"])


class Impatient(detent.Callback):
    """Sends the run a SIGTERM while it chooses its readout."""

    def on_message(self, text: str) -> None:
        if text.startswith("choosing the readout"):
            signal.raise_signal(signal.SIGTERM)


def test_a_stop_while_the_readout_is_chosen_leaves_the_choice_to_the_resumed_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = detent.train(small(), out=run, callbacks=[Impatient()])
    assert (result.finished, result.step) == (False, 272)
    assert json.loads((run / "run.json").read_text())["status"] == "stopped"
    assert set(readouts(run).values()) == {None}
    assert detent.resume(run, callbacks=[Impatient()]).finished is False
    assert detent.resume(run).finished
    assert "mean" in readouts(run).values()


def test_a_damaged_best_checkpoint_is_announced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small({"eval.deploy": "mode", "checkpoint.keep": 9}), out=run)
    best = checkpoints.locate(run, "best")
    assert best != checkpoints.locate(run, "latest")
    (best / "policy.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"is damaged: policy.safetensors .*, and it is the best; using \d+ instead"):
        detent.load(run)


def test_a_checkpoint_that_remembers_nothing_plays_the_most_probable_action(tmp_path: Path) -> None:
    def crash(row: dict[str, Any], policy: Any) -> None:
        if row["step"] > 200:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detent.train(small({"checkpoint.interval": 64}), out=tmp_path / "run", on_iteration=crash)
    assert set(readouts(tmp_path / "run").values()) == {None}
    assert detent.load(tmp_path / "run").readout == "mode"


def test_eval_tells_and_sets_the_readout_of_an_older_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "version-0.1.0" / "run-ppo", run)
    told = detent.evaluate_run(run, episodes=10, threads=1)
    assert told["readout"] == "mode"
    weights = detent.load(run).state_dict()
    chosen = detent.evaluate_run(run, episodes=10, threads=1, set_readout="auto")
    better = "mean" if told["mean"]["return"] > told["deterministic"]["return"] else "mode"
    assert chosen["readout"] == detent.load(run).readout == better
    assert chosen["mean"] == told["mean"]
    again = detent.load(run).state_dict()
    assert all(torch.equal(again[key], value) for key, value in weights.items())


def test_an_unknown_readout_in_a_checkpoint_is_damage(tmp_path: Path) -> None:
    run = tmp_path / "run"
    detent.train(small({"steps": 80}), out=run)
    state = run / "checkpoints" / "80" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "readout": "__import__"}))
    with pytest.raises(checkpoints.DamagedCheckpointError, match="unknown readout '__import__'"):
        detent.load(run, 80)


@pytest.mark.parametrize("rank_by", ["sample", "mean"])
def test_the_best_checkpoint_is_ranked_by_the_configured_readout(rank_by: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"eval.rank_by": rank_by, "eval.interval": 64, "checkpoint.keep": 9, "eval.deploy": "mode"}
    detent.train(small(settings), out=run)
    key = {"sample": "stochastic", "mean": "mean"}[rank_by]
    rows = read_rows(run / "evals.jsonl")[1:]
    best = max(rows, key=lambda row: row[key]["return"])
    assert checkpoints.read_state(checkpoints.locate(run, "best")).step == best["step"]


class Counting:
    """Two environments with episodes of 3 and 5 steps."""

    def __init__(self) -> None:
        self.spec = EnvSpec(ObservationSpec(1), ActionSpec((0.0, -1.0), (4.0, 1.0)))
        self.num_envs, self._steps = 2, 0

    def reset(self, seed: int) -> Observation:
        self._steps = 0
        return {"state": torch.zeros(2, 1)}

    def step(self, action: Tensor) -> Step:
        self._steps += 1
        ended = [self._steps % length == 0 for length in (3, 5)]
        state = {"state": torch.full((2, 1), float(self._steps))}
        episodes = tuple(Episode(i, 0.0, length) for i, length in enumerate((3, 5)) if ended[i])
        flags = torch.tensor(ended), torch.zeros(2, dtype=torch.bool)
        return Step(state, torch.zeros(2), *flags, state if any(ended) else None, episodes)

    def close(self) -> None: ...


class Scripted:
    """Plays the actions of a table, one row per step, the same in both environments."""

    device = torch.device("cpu")
    mean_is_mode = False
    has_mean = True

    def __init__(self, table: list[list[float]]) -> None:
        self._table = torch.tensor(table)

    def __call__(self, observation: Any, readout: str, generator: torch.Generator) -> Tensor:
        return self._table[int(observation["state"].max())].expand(2, 2)


def test_smoothness_is_the_mean_change_within_counted_episodes_over_half_the_range() -> None:
    envs: VectorEnv = Counting()
    # Half ranges 2 and 1. Changes between steps: (2/2 + 0/1)/2 = .5, (0 + 1)/2 = .5, (4/2 + 0)/2 = 1, 0.
    table = [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [4.0 - 6.0, 1.0], [-2.0, 1.0], [9.0, 9.0]]
    found = evaluate(Scripted(table), envs, 2, 0, "mode")
    # Environment 0: steps 0-1, 1-2: .5, .5, and nothing across the end of its episode. Environment 1 goes on with
    # 2-3 and 3-4: .5, .5, 1, 0. The second episode of environment 0 does not count. Mean of .5 .5 .5 .5 1 0.
    assert found.action_change == pytest.approx(3.0 / 6)
    assert [episode.length for episode in found.episodes] == [3, 5]
