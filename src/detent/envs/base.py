"""The one way the rest of Detent sees a simulator, whatever its own reset habits are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from detent.spec import EnvSpec, Observation


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
        """Make every environment anew from `seed`, forgetting everything before; the first observations."""
        ...

    def step(self, action: Tensor) -> Step:
        """Apply `action` `[N, m]` (within the spec's bounds); where an episode ends, the next one has begun already."""
        ...

    def close(self) -> None: ...
