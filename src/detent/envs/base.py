"""The interfaces of simulators and environments: one set of semantics, whatever a backend's autoreset mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from detent.config import EnvConfig
from detent.errors import ConfigError
from detent.spec import EnvSpec, Observation

if TYPE_CHECKING:
    from gymnasium import Env
    from torch import Tensor

EnvFactory = Callable[..., Any]
"""Makes a Gymnasium environment, or a Gymnasium `VectorEnv` (and may then take `num_envs`)."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Statistics of one finished episode."""

    env: int
    total_reward: float
    length: int
    success: float | None = None
    """Success at any step (ManiSkill's success_once), 1 or 0; None if the environment does not report it."""
    info: dict[str, float] = field(default_factory=dict)
    """Other scalars from the last step's info."""
    success_at_end: float | None = None
    """Success in the last step, 1 or 0; None if the environment does not report it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One real transition of every environment, never a dummy one."""

    observation: Observation
    """Observations `[N, ...]` to act on next; where an episode ended, the first of the next episode."""
    reward: Tensor
    """`[N]` float32."""
    terminated: Tensor
    """`[N]` bool."""
    truncated: Tensor
    """`[N]` bool; may be true together with `terminated`, which then takes precedence."""
    final_observation: Observation | None
    """`[N, ...]`: the last observation in rows whose episode ended, arbitrary in others; None if no episode ended."""
    episodes: tuple[Episode, ...]
    """The episodes that ended in this step."""


class VectorEnv(Protocol):
    """N environments stepped together."""

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int) -> Observation:
        """Rebuild every environment from `seed`, discarding all earlier state; return the first observations."""
        ...

    def step(self, action: Tensor) -> Step:
        """Apply `action` `[N, m]` (within the spec's bounds); where an episode ends, the next one begins at once."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DivisibleEnv(VectorEnv, Protocol):
    """Environments that can be divided among worker processes."""

    def part(self, rows: slice, threads: int) -> VectorEnv:
        """Return the environments `rows`, with unchanged seeds and numbers, stepped by `threads` of their own."""
        ...


@runtime_checkable
class AdjustableEnv(VectorEnv, Protocol):
    """Environments whose attributes can be changed during a run."""

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of every environment, at once and again after every rebuild, before the reset."""
        ...


class Simulator(ABC):
    """A backend that makes vector environments. A plug-in is constructed without arguments, or with its `Options`."""

    @abstractmethod
    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        """Make `num_envs` environments, which `reset(seed)` starts; raise a ConfigError if that is impossible."""

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        """Return a task's spaces and time limit; reject what cannot be learned from before training starts."""
        envs = self.make(task, config, 1, 1)
        try:
            return envs.spec
        finally:
            envs.close()

    def make_rendering(self, task: str, config: EnvConfig) -> Env[Any, Any]:
        """Make one Gymnasium environment that renders images."""
        raise ConfigError(f"{task} cannot be recorded: {type(self).__name__} does not support rendering")
