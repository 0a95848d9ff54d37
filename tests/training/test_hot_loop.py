"""What a device would have to wait for: counted on the CPU, where it costs nothing, to be bearable on a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from detent.config import UpdateConfig
from detent.config.presets import configure
from detent.envs import Episode, Step
from detent.rollouts.collector import Collector
from detent.training.dispatch import Callbacks
from detent.training.run import resolve
from detent.training.trainer import Trainer

TARGET = "detent.envs.scripted:Target-v0"
READS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__"}
COPIES = {"cpu", "numpy"}
STEPS, EPOCHS = 8, 3


class Calls(TorchFunctionMode):
    """Counts what Python asks of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[getattr(func, "__name__", "")] += 1
        return func(*args, **(kwargs or {}))

    def of(self, names: set[str]) -> int:
        return sum(self.count[name] for name in names)


class Sizes(TorchDispatchMode):
    """Counts operations whose result has a size that only the data tells."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self, None)
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        self.count += name in ("nonzero", "masked_select", "_local_scalar_dense")
        if name in ("index", "index_put", "index_put_"):
            # A mask is turned into indices below what a dispatch mode sees.
            self.count += any(index is not None and index.dtype == torch.bool for index in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operation", [lambda x, mask: x[mask], lambda x, mask: x.index_put_((mask,), x.sum())])
def test_a_mask_as_index_is_counted(operation: Any) -> None:
    with Sizes() as sizes:
        operation(torch.zeros(3), torch.tensor([True, False, True]))
    assert sizes.count == 1


Ends = dict[int, tuple[list[int], list[int]]]
ENDS: Ends = {1: ([0], []), 4: ([], [1, 2]), 6: ([3], [0, 3])}
"""Steps of a rollout that end episodes: the environments that terminate, and those that are truncated."""


class OnDevice:
    """Environments that give and take tensors and nothing else, as a simulator on the device does."""

    def __init__(self, envs: Any, ends: Ends) -> None:
        self.spec, self.num_envs, self._ends, self._t = envs.spec, envs.num_envs, ends, 0

    def reset(self, seed: int) -> dict[str, Tensor]:
        return {"state": torch.zeros(self.num_envs, 2)}

    def step(self, action: Tensor) -> Step:
        ends = self._ends.get(self._t % STEPS, ([], []))
        self._t += 1
        terminated, truncated = torch.zeros(2, self.num_envs, dtype=torch.bool)
        for flags, envs in zip((terminated, truncated), ends, strict=True):
            for env in envs:
                flags[env] = True
        episodes = tuple(Episode(env, total_reward=-1.0, length=3) for env in sorted({*ends[0], *ends[1]}))
        state = action / 10
        final = {"state": state + 1} if episodes else None
        return Step({"state": state}, -action.square().sum(-1), terminated, truncated, final, episodes)

    def close(self) -> None: ...


def make_trainer(ends: Ends, **update: Any) -> Trainer:
    overrides = {"steps": 128, "env.num_envs": 4, "rollout_steps": STEPS, "threads": 1, "eval.episodes": 1}
    settings = replace(
        configure(TARGET, overrides=overrides), update=UpdateConfig(epochs=EPOCHS, minibatches=4, **update)
    )
    trainer = Trainer(resolve(settings), Callbacks())
    trainer.close()
    trainer.collector = Collector(trainer.policy, OnDevice(trainer.envs, ends), trainer.config)
    return trainer


@pytest.mark.parametrize(("target_kl", "reads"), [(0.0, 1), (1e9, 1 + EPOCHS)])
@pytest.mark.parametrize("ends", [{}, ENDS], ids=["no episode ends", "episodes end"])
def test_an_iteration_reads_once_and_once_more_per_epoch_for_the_target_kl_and_per_step_that_ends_episodes(
    ends: Ends, target_kl: float, reads: int
) -> None:
    """Everything it reports and whether the rollout is finite; of a step that ends episodes, how many."""
    trainer = make_trainer(ends, target_kl=target_kl)
    trainer._iterate()
    with Calls() as calls, Sizes() as sizes:
        row = trainer._iterate()
    assert calls.of(READS) == reads
    assert calls.of(COPIES) == 0
    # A list of numbers is read without an operation; each read for a target KL is one.
    assert sizes.count == reads - 1 + len(ends)
    assert row["episodes"] == (1 + 2 + 2 if ends else 0)
