"""The interface of an update rule, and finding the one a run asks for."""

from __future__ import annotations

from typing import Protocol

from torch import Generator, Tensor

from detent.algorithms.losses import LOSSES, Metrics, make_policy_loss
from detent.config import Config
from detent.models.policy import Policy
from detent.registry import Reference, Registry
from detent.rollouts.batch import Batch

UPDATE_RULES = Registry("update rule", "detent.update_rules", {"trpo": "detent.algorithms.trpo:TRPO"})


class UpdateRule(Protocol):
    """From a batch to better parameters; made of the policy and the configuration (and its `Options`)."""

    notes: tuple[str, ...]
    """What a user should be told at the start of a run."""

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: Metrics | None = None
    ) -> dict[str, float]:
        """Update the policy; return what was measured, and the `extra_scalars`, all read from the device at once."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return everything that a later update depends on besides the policy."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        """Release processes."""
        ...


def algorithm_plugin(config: Config) -> Reference:
    """Return the loss or update rule of a configuration."""
    registry = LOSSES if LOSSES.known(config.algo) else UPDATE_RULES
    if ":" in config.algo and not registry.known(config.algo):
        # An import path names a loss unless the class says that it updates by itself.
        registry = UPDATE_RULES if hasattr(UPDATE_RULES.get(config.algo), "update") else LOSSES
    return Reference(registry, config.algo, "algo", config.update.options, "update.options")


def make_update_rule(policy: Policy, config: Config) -> UpdateRule:
    """Make the rule that updates by autograd."""
    from detent.algorithms.minibatch import MinibatchUpdate

    if algorithm_plugin(config).registry is LOSSES:
        return MinibatchUpdate(policy, make_policy_loss(config), config.update)
    rule: UpdateRule = UPDATE_RULES.make(
        config.algo, policy, config, options=config.update.options, setting="update.options"
    )
    return rule
