"""The plug-ins that a policy is made of; needs no torch."""

from __future__ import annotations

from detent.config import Config
from detent.models.critics import CRITICS
from detent.models.heads import HEADS
from detent.models.networks import ENCODERS, TRUNKS
from detent.registry import Reference


def model_plugins(config: Config) -> list[Reference]:
    """Return the plug-ins that make up the policy of a configuration."""
    return [
        Reference(HEADS, config.head.kind, "head.kind", config.head.options, "head.options"),
        Reference(TRUNKS, config.actor.kind, "actor.kind", config.actor.options, "actor.options"),
        Reference(TRUNKS, config.critic.kind, "critic.kind", config.critic.options, "critic.options"),
        Reference(CRITICS, config.critic.head, "critic.head", config.critic.head_options, "critic.head_options"),
        Reference(ENCODERS, config.encoder.kind, "encoder.kind", config.encoder.options, "encoder.options"),
    ]
