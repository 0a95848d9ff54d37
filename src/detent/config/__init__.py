"""Settings: what a run can be told (schema), how it is read, changed and saved (io), and the presets as TOML files.

Needs neither torch nor a simulator nor the command line's parser.
"""

from detent.config.schema import (
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
    SPOConfig,
    TD3Config,
    TRPOConfig,
    UpdateConfig,
    validate,
)

__all__ = [
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
    "SPOConfig",
    "TD3Config",
    "TRPOConfig",
    "UpdateConfig",
    "validate",
]
