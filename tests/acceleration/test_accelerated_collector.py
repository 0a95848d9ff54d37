from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("envpool")

import detent
from detent.acceleration.collector import AcceleratedCollector, FusedActor
from detent.acceleration.update import AcceleratedMinibatchUpdate
from detent.acceleration.worker_group import supported
from detent.algorithms.losses import make_policy_loss
from detent.config import Config
from detent.config.presets import configure
from detent.envs import VectorEnv, divide, make_envs
from detent.envs.envpool import EnvPoolEnvs
from detent.models.policy import Policy
from detent.rollouts.collector import Collector
from detent.rollouts.rollout import Rollout, allocate, collect
from detent.seeding import derive_seed
from detent.threads import core_numbers

pytestmark = [
    pytest.mark.skipif(not supported(), reason="needs fork and shared anonymous memory (Linux)"),
    pytest.mark.usefixtures("one_thread"),
]

STEPS = 60
"""Enough for Hopper's episodes to end under a policy that knows nothing."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What `train` sets where there are several processes: products of a few rows round otherwise with more threads,
    and forked processes have one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(variant: str) -> Config:
    overrides = {"env.num_envs": 5, "rollout_steps": STEPS, "actor.width": 16, "env.backend": "envpool", "threads": 1}
    return configure("Hopper-v4", variant=variant, overrides=overrides)


def make_policy(envs: VectorEnv, config: Config) -> Policy:
    """With parameters in the memory, and so with the roundings, that they have in a run of several processes."""
    policy = Policy(envs.spec, config)
    AcceleratedMinibatchUpdate(policy, make_policy_loss(config), replace(config.update, processes=2))
    return policy


def change(policy: Policy, states: list[Tensor]) -> None:
    """What happens between two rollouts."""
    policy.update_statistics({"state": torch.cat(states, dim=1)})
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)


def collected_apart(config: Config, iterations: dict[int, bool]) -> list[list[Rollout]]:
    """By this process, one part after the other: the rollouts of `iterations`, which tell whether environments are
    fresh."""
    envs = make_envs(config.task, config.env, 5, 1)
    policy = make_policy(envs, config)
    act = FusedActor(policy)
    parts = divide(envs, [slice(0, 2), slice(2, 5)], threads=2)
    observations = [part.reset(0) for part in parts]
    rollouts = []
    for iteration, fresh in iterations.items():
        if fresh:
            observations = [part.reset(derive_seed(config.seed, "envs", iteration)) for part in parts]
        filled = []
        for rank, part in enumerate(parts):
            names: list[str | int] = ["act", iteration, *([rank] if rank else [])]
            generator = torch.Generator().manual_seed(derive_seed(config.seed, *names))
            filled.append(allocate(policy, observations[rank], STEPS))
            observations[rank] = collect(policy, part, observations[rank], filled[-1], generator, act)
        rollouts.append(filled)
        change(policy, [each.observation["state"] for each in filled])
    for part in parts:
        part.close()
    return rollouts


@pytest.mark.parametrize("variant", ["rn-d", "mlp-c"])
def test_two_processes_collect_what_one_would_part_by_part(variant: str) -> None:
    config = config_of(variant)
    iterations = {7: True, 8: False, 9: True}
    expected = collected_apart(config, iterations)
    envs = make_envs(config.task, config.env, 5, 1)
    policy = make_policy(envs, config)
    collector = AcceleratedCollector(policy, envs, config, processes=2)
    cores = core_numbers()
    for (iteration, fresh), wanted in zip(iterations.items(), expected, strict=True):
        rollout = collector.collect(iteration, fresh)
        for name, tensor in vars(rollout).items():
            if isinstance(tensor, Tensor):
                along = 0 if name == "last_value" else 1
                assert torch.equal(tensor, torch.cat([getattr(part, name) for part in wanted], along)), name
        state = rollout.observation["state"]
        assert torch.equal(state, torch.cat([part.observation["state"] for part in wanted], 1))
        assert rollout.final_value.any()
        assert rollout.episodes == [episode for part in wanted for episode in part.episodes]
        assert {episode.env for episode in rollout.episodes} == set(range(5))
        assert set(rollout.seconds) == {"act", "simulate"}
        assert core_numbers() == cores
        change(policy, [state])
    collector.close()


@pytest.mark.parametrize(
    ("threads", "processes", "expected"), [(2, 2, [1, 1]), (8, 2, [2, 3]), (1, 3, [1, 1, 1]), (4, 9, [1] * 5)]
)
def test_processes_divide_environments_and_threads(threads: int, processes: int, expected: list[int]) -> None:
    config = replace(config_of("mlp-c"), threads=threads)
    envs = make_envs(config.task, config.env, 5, threads)
    collector = AcceleratedCollector(make_policy(envs, config), envs, config, processes)
    rollout = collector.collect(0, fresh=True)
    # No more threads than environments.
    assert [part._threads for part in collector._parts if isinstance(part, EnvPoolEnvs)] == expected
    assert {episode.env for episode in rollout.episodes} == set(range(5))
    assert len(collector._group._pids) == len(expected) - 1
    collector.close()


def test_rollouts_are_made_on_a_core_each_where_there_is_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    config, cores = config_of("mlp-c"), core_numbers()
    seen: list[list[int]] = []
    for name in ("reset", "step"):
        method = getattr(EnvPoolEnvs, name)

        def noted(self: EnvPoolEnvs, argument: object, method: Any = method) -> Any:
            seen.append(core_numbers())
            return method(self, argument)

        monkeypatch.setattr(EnvPoolEnvs, name, noted)
    for processes in {1, 2, min(len(cores), 5)}:
        seen.clear()
        envs = make_envs(config.task, config.env, 5, 1)
        collector = AcceleratedCollector(make_policy(envs, config), envs, config, processes)
        collector.collect(0, fresh=True)
        collector.close()
        expected = cores[:1] if 1 < processes == len(cores) else cores
        assert seen == [expected] * (1 + STEPS)


def test_closing_in_the_middle_of_a_rollout_waits_for_nobody() -> None:
    config = replace(config_of("mlp-c"), rollout_steps=100_000)
    envs = make_envs(config.task, config.env, 5, 1)
    collector = AcceleratedCollector(make_policy(envs, config), envs, config, processes=2)

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            collector.collect(0, fresh=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (pid,) = collector._group._pids.values()
    collector.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_is_killed_ends_the_rollout_with_a_sentence() -> None:
    config = config_of("mlp-c")
    envs = make_envs(config.task, config.env, 5, 1)
    collector = AcceleratedCollector(make_policy(envs, config), envs, config, processes=2)
    collector.collect(0, fresh=True)
    os.kill(collector._group._pids[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"rollout process 1 \(of 2\) was killed by SIGKILL"):
        collector.collect(1, fresh=False)
    collector.close()


def test_processes_would_not_see_parameters_outside_shared_memory_and_say_so() -> None:
    config = config_of("mlp-c")
    envs = make_envs(config.task, config.env, 5, 1)
    collector = AcceleratedCollector(Policy(envs.spec, config), envs, config, processes=2)
    with pytest.raises(RuntimeError, match="parameters are not in shared memory"):
        collector.collect(0, fresh=True)
    collector.close()


def test_parameters_that_move_during_a_run_are_noticed() -> None:
    config = config_of("mlp-c")
    envs = make_envs(config.task, config.env, 5, 1)
    policy = make_policy(envs, config)
    collector = AcceleratedCollector(policy, envs, config, processes=2)
    collector.collect(0, fresh=True)
    parameter = next(policy.critic.parameters())
    parameter.data = parameter.data.clone()
    with pytest.raises(RuntimeError, match="parameters moved after the rollout processes had started"):
        collector.collect(1, fresh=False)
    collector.close()


@pytest.mark.parametrize("change_of", ["a module", "a hook"])
def test_modules_that_change_during_a_run_are_noticed(change_of: str) -> None:
    config = config_of("mlp-c")
    envs = make_envs(config.task, config.env, 5, 1)
    policy = Policy(envs.spec, config)
    collector = AcceleratedCollector(policy, envs, config)
    collector.collect(0, fresh=True)
    if change_of == "a module":
        policy.actor[1] = copy.deepcopy(policy.actor[1])
    else:
        policy.actor[1].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    with pytest.raises(RuntimeError, match=r"replaced or hooked during the run.*--update\.engine autograd"):
        collector.collect(1, fresh=False)
    collector.close()


@pytest.mark.parametrize("variant", ["rn-d", "mlp-c"])
def test_alone_it_collects_what_the_plain_collector_does(variant: str) -> None:
    # A few steps: bodies that fall make much of a different rounding.
    config = replace(config_of(variant), rollout_steps=5)
    rollouts = []
    for engine in (Collector, AcceleratedCollector):
        envs = make_envs(config.task, config.env, 5, 1)
        collector = engine(Policy(envs.spec, config), envs, config)
        filled = [collector.collect(iteration, fresh).map(Tensor.clone) for iteration, fresh in ((3, True), (4, False))]
        rollouts.append([*filled, collector.collect(3, True)])
        collector.close()
    for plain, fast in zip(*rollouts, strict=True):
        for (name, one), other in zip(vars(plain).items(), vars(fast).values(), strict=True):
            if isinstance(one, Tensor):
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(fast.observation["state"], plain.observation["state"], rtol=1e-4, atol=1e-5)
    first, _, again = rollouts[1]
    assert torch.equal(again.choice, first.choice), "the same environments and draws, made anew"


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_run_in_two_processes_resumes_to_the_bit(tmp_path: Path) -> None:
    config = replace(config_of("mlp-c"), steps=1500)
    config = replace(
        config,
        update=replace(config.update, processes=2, minibatches=5, epochs=2),
        checkpoint=replace(config.checkpoint, interval=600),
        eval=replace(config.eval, episodes=1, num_envs=1),
    )
    before, during = children(), []
    detent.train(config, out=tmp_path / "whole", on_iteration=lambda row, policy: during.append(children() - before))
    assert {len(pids) for pids in during} == {2}, "one for rollouts, one for updates"
    assert children() <= before
    detent.train(config, out=tmp_path / "cut", on_iteration=lambda row, policy: row["iteration"] == 3)
    assert detent.resume(tmp_path / "cut", exact=True).finished
    whole, cut = (detent.load(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(value, cut[key]) for key, value in whole.items())
