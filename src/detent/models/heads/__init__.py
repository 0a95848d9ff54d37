"""Action distributions; a new one is a file and a line here."""

from __future__ import annotations

from detent.config import HeadConfig
from detent.models.heads.base import Head
from detent.models.heads.categorical import CategoricalHead
from detent.models.heads.gaussian import GaussianHead
from detent.models.heads.loss_swap import LossSwapHead
from detent.spec import ActionSpec

HEADS: dict[str, type[CategoricalHead] | type[GaussianHead] | type[LossSwapHead]] = {
    "categorical": CategoricalHead,
    "gaussian": GaussianHead,
    "loss-swap": LossSwapHead,
}


def make_head(action: ActionSpec, config: HeadConfig) -> Head:
    return HEADS[config.kind](action, config)


__all__ = ["HEADS", "CategoricalHead", "GaussianHead", "Head", "LossSwapHead", "make_head"]
