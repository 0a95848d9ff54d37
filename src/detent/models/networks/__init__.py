"""Trunks of actor and critic, and encoders of observations; plug-ins can add more.

A trunk is constructed with its number of inputs and a `NetworkConfig`, maps `[B, inputs]` to `[B, num_features]` and
exposes `num_features`. An encoder is constructed with an `ObservationSpec` and an `EncoderConfig`, maps a normalized
observation to `[B, num_features]` and exposes `num_features`. Both also receive their own `Options` if they define such
a dataclass. Any module inside may define `after_step()`, which is called after each step of the optimizer.
"""

from __future__ import annotations

from typing import Any

from detent.config import EncoderConfig, NetworkConfig
from detent.registry import Registry
from detent.spec import ObservationSpec

TRUNKS = Registry(
    "trunk",
    "detent.trunks",
    {
        "rn": "detent.models.networks.trunks:RegularizedNetwork",
        "mlp": "detent.models.networks.trunks:MLP",
        "simba": "detent.models.networks.simba:SimBa",
        "simba-v2": "detent.models.networks.simba_v2:SimBaV2",
        "bronet": "detent.models.networks.bronet:BroNet",
    },
    base="torch.nn:Module",
)
ENCODERS = Registry(
    "encoder",
    "detent.encoders",
    {"nature": "detent.models.networks.encoders:NatureEncoder"},
    base="torch.nn:Module",
)


def make_trunk(inputs: int, config: NetworkConfig, section: str) -> Any:
    """Make the trunk of `section`, `actor` or `critic`: any module with `num_features`."""
    return TRUNKS.make(config.kind, inputs, config, options=config.options, setting=f"{section}.options")


def make_encoder(observation: ObservationSpec, config: EncoderConfig) -> Any:
    """Make the encoder: any module with `num_features`."""
    return ENCODERS.make(config.kind, observation, config, options=config.options, setting="encoder.options")
