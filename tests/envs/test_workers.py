from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detent.envs import Episode
from detent.envs.workers import ProcessDiedError, WorkerPool, call_in_process, how_it_ended
from detent.errors import ConfigError
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

SPEC = EnvSpec(ObservationSpec(2, image=(2, 3, 3)), ActionSpec((-10.0,), (10.0,)))


@pytest.fixture(autouse=True)
def _seats_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def envs() -> Any:
    """The module that worker processes import too."""
    return import_module("counting_envs")


@pytest.fixture(params=[1, 2, 5])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    """Five envs in one, two and five processes; environment i plays episodes of i + 1 steps."""
    pool = WorkerPool("Counting", [envs().Counting(i, i + 1) for i in range(5)], request.param, SPEC, ())
    yield pool
    pool.close()


def test_every_environment_has_its_own_seed_action_and_episode(pool: WorkerPool) -> None:
    first = pool.reset([10, 20, 30, 40, 50])
    assert first["state"][:, 0].tolist() == [10, 20, 30, 40, 50]
    assert first["rgb"][:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50]
    step = pool.step(np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]))
    # Environment 0 ends with its first step: count 11, then the next episode begins at 111.
    assert step.observation["state"][:, 0].tolist() == [111, 21, 31, 41, 51]
    np.testing.assert_allclose(step.reward, [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-7)
    assert step.terminated.tolist() == [True, False, False, False, False]
    assert not step.truncated.any()
    assert step.final_observation is not None
    assert step.final_observation["state"][0, 0] == 11
    assert (step.final_observation["rgb"][0] == 11).all()
    assert step.episodes == (Episode(0, 11.0, 1),)
    step = pool.step(np.zeros((5, 1)))
    assert step.episodes == (Episode(0, 112.0, 1), Episode(1, 22.0, 2))
    # A step is not changed by those after it.
    assert first["state"][:, 0].tolist() == [10, 20, 30, 40, 50]


def test_seats_are_spread_evenly_over_the_processes(pool: WorkerPool) -> None:
    processes = pool.reset([0] * 5)["state"][:, 1].tolist()
    counts = sorted(processes.count(process) for process in set(processes))
    assert counts in ([5], [2, 3], [1] * 5)


def test_a_step_without_an_end_has_no_final_observation() -> None:
    pool = WorkerPool("Counting", [envs().Counting(0, 3)], 1, SPEC, ())
    pool.reset([0])
    steps = [pool.step(np.zeros((1, 1))) for _ in range(3)]
    assert [step.final_observation is None for step in steps] == [True, True, False]
    pool.close()
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_named_by_its_environments() -> None:
    pool = WorkerPool("Counting", [envs().Counting(i, 9) for i in range(4)], 2, SPEC, ())
    pool.reset([0] * 4)
    with pytest.raises(RuntimeError, match=r"^the worker process of environments 2 to 3 \(Counting\) .* exit code 5$"):
        pool.step(np.array([[0.0], [0.0], [0.0], [envs().DIE]]))
    assert not multiprocessing.active_children(), "the others are ended too"


def test_an_error_inside_a_seat_is_told_and_ends_the_workers() -> None:
    pool = WorkerPool("Counting", [envs().Counting(i, 9) for i in range(2)], 2, SPEC, ())
    pool.reset([0] * 2)
    with pytest.raises(RuntimeError, match=r"^environment 1 is tired$"):
        pool.step(np.array([[0.0], [envs().FAIL]]))
    assert not multiprocessing.active_children()


def test_a_call_in_a_process_of_its_own_answers_refuses_or_dies() -> None:
    assert call_in_process(math.sqrt, (9.0,), ()) == 3.0
    with pytest.raises(ConfigError, match=r"^not like this$"):
        call_in_process(envs().refuse, ("not like this",), ())
    with pytest.raises(ProcessDiedError, match=r"^ended with exit code 6$"):
        call_in_process(os._exit, (6,), ())


def test_exit_codes_in_words() -> None:
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-11) == "was killed by signal 11"
    assert "memory" in how_it_ended(-9)
