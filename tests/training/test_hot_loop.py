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

from detent.config import Config, EvalConfig, UpdateConfig
from detent.config.presets import configure
from detent.envs import Step
from detent.rollouts.collector import Collector
from detent.training.callbacks import Callbacks
from detent.training.run import resolve
from detent.training.trainer import Trainer

TARGET = "detent.envs.scripted:Target-v0"
READS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__"}
COPIES = {"cpu", "numpy"}


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
        self.count += func.__name__.split(".")[0] in ("nonzero", "masked_select", "_local_scalar_dense")
        return func(*args, **(kwargs or {}))


class OnDevice:
    """Environments that give and take tensors and nothing else, as a simulator on the device does."""

    def __init__(self, envs: Any) -> None:
        self.spec, self.num_envs = envs.spec, envs.num_envs

    def reset(self, seed: int) -> dict[str, Tensor]:
        return {"state": torch.zeros(self.num_envs, 2)}

    def step(self, action: Tensor) -> Step:
        never = torch.zeros(self.num_envs, dtype=torch.bool)
        return Step({"state": action / 10}, -action.square().sum(-1), never, never, None, ())

    def close(self) -> None: ...


def make_trainer(**update: Any) -> Trainer:
    settings: Config = configure(TARGET, overrides={"steps": 128, "env.num_envs": 4, "rollout_steps": 8, "threads": 1})
    settings = replace(settings, update=UpdateConfig(epochs=3, minibatches=4, **update), eval=EvalConfig(episodes=1))
    trainer = Trainer(resolve(settings), Callbacks())
    trainer.close()
    trainer.collector = Collector(trainer.policy, OnDevice(trainer.envs), trainer.config)
    return trainer


@pytest.mark.parametrize(("target_kl", "reads"), [(0.0, 1), (1e9, 1 + 3)])
def test_an_iteration_reads_once_and_once_more_per_epoch_for_the_target_kl(target_kl: float, reads: int) -> None:
    """Everything it reports, and whether the rollout is finite."""
    trainer = make_trainer(target_kl=target_kl)
    trainer._iterate()
    with Calls() as calls, Sizes() as sizes:
        trainer._iterate()
    assert calls.of(READS) == reads
    assert calls.of(COPIES) == 0
    assert sizes.count <= reads
