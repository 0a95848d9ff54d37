"""Decorators that register plug-ins, and the registries they fill."""

from __future__ import annotations

from detent.algorithms.losses import LOSSES
from detent.algorithms.update_rule import UPDATE_RULES
from detent.envs import SIMULATORS
from detent.models.critics import CRITICS
from detent.models.heads import HEADS
from detent.models.networks import ENCODERS, TRUNKS
from detent.registry import Registry
from detent.training.loggers import CALLBACKS, LOGGERS

REGISTRIES: dict[str, Registry] = {
    "heads": HEADS,
    "trunks": TRUNKS,
    "encoders": ENCODERS,
    "critics": CRITICS,
    "losses": LOSSES,
    "update-rules": UPDATE_RULES,
    "simulators": SIMULATORS,
    "loggers": LOGGERS,
    "callbacks": CALLBACKS,
}

register_head = HEADS.register
register_trunk = TRUNKS.register
register_encoder = ENCODERS.register
register_critic = CRITICS.register
register_loss = LOSSES.register
register_update_rule = UPDATE_RULES.register
register_simulator = SIMULATORS.register
register_logger = LOGGERS.register
register_callback = CALLBACKS.register
