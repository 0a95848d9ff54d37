"""Critic heads: what the critic's network predicts and how it is trained; plug-ins can add more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.config import CriticConfig
from detent.registry import Registry

if TYPE_CHECKING:
    from detent.models.critics.base import CriticHead

CRITICS = Registry(
    "critic",
    "detent.critics",
    {
        "scalar": "detent.models.critics.scalar:ScalarCritic",
        "hl-gauss": "detent.models.critics.hl_gauss:HLGaussCritic",
        "two-hot": "detent.models.critics.two_hot:TwoHotCritic",
    },
    base="detent.models.critics.base:CriticHead",
)


def make_critic_head(config: CriticConfig) -> CriticHead:
    critic: CriticHead = CRITICS.make(config.head, config, options=config.head_options, setting="critic.head_options")
    return critic
