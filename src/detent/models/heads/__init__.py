"""Action distributions, one file each; plug-ins can add more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.config import HeadConfig
from detent.registry import Registry
from detent.spec import ActionSpec

if TYPE_CHECKING:
    from detent.models.heads.base import Head

HEADS = Registry(
    "head",
    "detent.heads",
    {
        "categorical": "detent.models.heads.categorical:CategoricalHead",
        "ordinal": "detent.models.heads.ordinal:OrdinalHead",
        "unimodal": "detent.models.heads.unimodal:UnimodalHead",
        "smooth": "detent.models.heads.smooth:SmoothHead",
        "coarse-fine": "detent.models.heads.coarse_fine:CoarseFineHead",
        "gaussian": "detent.models.heads.gaussian:GaussianHead",
        "squashed-gaussian": "detent.models.heads.squashed_gaussian:SquashedGaussianHead",
        "beta": "detent.models.heads.beta:BetaHead",
        "loss-swap": "detent.models.heads.loss_swap:LossSwapHead",
    },
    base="detent.models.heads.base:Head",
)


def make_head(action: ActionSpec, config: HeadConfig) -> Head:
    head: Head = HEADS.make(config.kind, action, config, options=config.options, setting="head.options")
    return head
