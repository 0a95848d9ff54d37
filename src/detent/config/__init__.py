"""Settings of a run: the schema, reading, changing and saving configurations (io), and the presets as TOML files.

Needs neither torch nor a simulator nor the command-line parser.
"""

from detent.config.schema import (
    READOUTS,
    ActorConfig,
    AdvantageConfig,
    CheckpointConfig,
    Config,
    CriticConfig,
    EncoderConfig,
    EnvConfig,
    EvalConfig,
    HeadConfig,
    NetworkConfig,
    NormalizeConfig,
    PPOConfig,
    Readout,
    SPOConfig,
    TD3Config,
    TRPOConfig,
    UpdateConfig,
    validate,
)

__all__ = [
    "READOUTS",
    "ActorConfig",
    "AdvantageConfig",
    "CheckpointConfig",
    "Config",
    "CriticConfig",
    "EncoderConfig",
    "EnvConfig",
    "EvalConfig",
    "HeadConfig",
    "NetworkConfig",
    "NormalizeConfig",
    "PPOConfig",
    "Readout",
    "SPOConfig",
    "TD3Config",
    "TRPOConfig",
    "UpdateConfig",
    "validate",
]
