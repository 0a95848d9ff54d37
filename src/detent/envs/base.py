"""The interfaces of simulators and their environments: one set of semantics whatever a backend's autoreset mode is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from detent.config import EnvConfig
from detent.errors import ConfigError
from detent.spec import EnvSpec, Observation

if TYPE_CHECKING:
    from gymnasium import Env

EnvFactory = Callable[..., Any]
"""Makes a Gymnasium environment, or a Gymnasium `VectorEnv` (then it may take `num_envs`)."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Statistics of one finished episode."""

    env: int
    total_reward: float
    length: int
    success: float | None = None
    """Whether there was success at any time, 1 or 0 (ManiSkill's success_once), where it is reported, else None."""
    info: dict[str, float] = field(default_factory=dict)
    """Other scalars of the last step's info."""
    success_at_end: float | None = None
    """1 or 0 where the environment reports success in the last step, else None."""


@dataclass(frozen=True, slots=True)
class Step:
    """One real transition of every environment; there are no dummy ones."""

    observation: Observation
    """What to act on next `[N, ...]`: the first observation of the next episode where one ended."""
    reward: Tensor
    """`[N]` float32."""
    terminated: Tensor
    """`[N]` bool."""
    truncated: Tensor
    """`[N]` bool; may be true together with `terminated`, which then counts."""
    final_observation: Observation | None
    """`[N, ...]`, the last observation in the rows whose episode ended (others are arbitrary); None if none ended."""
    episodes: tuple[Episode, ...]
    """The episodes that ended in this step."""


class VectorEnv(Protocol):
    """N environments stepped together."""

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int) -> Observation:
        """Make every environment anew from `seed`, forgetting everything before; return the first observations."""
        ...

    def step(self, action: Tensor) -> Step:
        """Apply `action` `[N, m]` (within the spec's bounds); where an episode ends, the next one has begun already."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DivisibleEnv(VectorEnv, Protocol):
    """Environments that worker processes can divide among themselves."""

    def part(self, rows: slice, threads: int) -> VectorEnv:
        """Return some of these environments, seeded and numbered as here, stepped by `threads` of their own."""
        ...


class Simulator(ABC):
    """A backend: makes vector environments. A plug-in is made without arguments, or of its `Options`."""

    @abstractmethod
    def make(self, task: str, config: EnvConfig, num_envs: int, threads: int) -> VectorEnv:
        """Make `num_envs` environments; `reset(seed)` starts them. What cannot be made is a ConfigError."""

    def spec(self, task: str, config: EnvConfig) -> EnvSpec:
        """Return spaces and time limit of a task; what cannot be learned from is refused here, before training."""
        envs = self.make(task, config, 1, 1)
        try:
            return envs.spec
        finally:
            envs.close()

    def make_rendering(self, task: str, config: EnvConfig) -> Env[Any, Any]:
        """Make one Gymnasium environment that renders pictures."""
        raise ConfigError(f"{task} cannot be filmed: {type(self).__name__} renders no pictures")
