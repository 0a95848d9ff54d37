"""The interface of update rules, and the lookup of a run's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from detent.algorithms.losses import LOSSES, Metrics, make_policy_loss
from detent.config import Config
from detent.registry import Reference, Registry

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from detent.models.policy import Policy
    from detent.rollouts.batch import Batch

UPDATE_RULES = Registry(
    "update rule", "detent.update_rules", {"trpo": "detent.algorithms.trpo:TRPO"}, reserved=("ppo", "spo", "td3")
)


class UpdateRule(Protocol):
    """Improves the policy on a batch; constructed with the policy and the configuration (and its `Options`)."""

    notes: tuple[str, ...]
    """Messages for the user at the start of a run."""

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        """Update the policy; return metrics and the `extra_scalars`, copied from the device in one transfer."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return all state that later updates depend on, except the policy."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        """Release worker processes."""
        ...


def algorithm_plugin(config: Config) -> Reference:
    """Return the loss or update rule that a configuration names."""
    registry = LOSSES if LOSSES.known(config.algo) else UPDATE_RULES
    if ":" in config.algo and not registry.known(config.algo):
        # An import path names a loss unless the class has an `update` of its own.
        found = UPDATE_RULES.get(config.algo)
        registry = UPDATE_RULES if all(hasattr(found, name) for name in ("update", "state", "load_state")) else LOSSES
    return Reference(registry, config.algo, "algo", config.update.options, "update.options")


def make_update_rule(policy: Policy, config: Config) -> UpdateRule:
    """Make the update rule that uses autograd."""
    from detent.algorithms.minibatch import MinibatchUpdate

    if algorithm_plugin(config).registry is LOSSES:
        return MinibatchUpdate(policy, make_policy_loss(config), config.update)
    rule: UpdateRule = UPDATE_RULES.make(
        config.algo, policy, config, options=config.update.options, setting="update.options"
    )
    return rule
