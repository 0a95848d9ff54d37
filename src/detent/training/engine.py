"""The engine of a run: plain autograd, or accelerated if every module has an accelerated form."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Literal, Protocol

from detent.algorithms import update_rule
from detent.algorithms.update_rule import UpdateRule
from detent.config import Config
from detent.config.presets import BASELINES
from detent.envs import VectorEnv
from detent.errors import ConfigError
from detent.models.policy import Policy
from detent.rollouts.collector import Collector
from detent.rollouts.rollout import Rollout
from detent.spec import EnvSpec

Engine = Literal["auto", "autograd", "accelerated"]


class RolloutCollector(Protocol):
    def collect(self, iteration: int, fresh: bool) -> Rollout: ...
    def close(self) -> None: ...


def acceleration() -> ModuleType | None:
    """Return the package of accelerated forms; None if it was removed."""
    try:
        return import_module("detent.acceleration")
    except ImportError:
        return None


def why_not_accelerated(config: Config, policy: Policy) -> str | None:
    """Return why a run cannot use the accelerated engine; None if it can."""
    room = acceleration()
    if room is None:
        return "detent.acceleration is not installed"
    missing: str | None = room.missing_form(policy, config)
    return missing and f"{missing} has no accelerated form"


def engine_notes(config: Config, policy: Policy) -> tuple[str, ...]:
    """Return notes on why a run is slower than it could be."""
    reason = why_not_accelerated(config, policy) if config.update.engine == "autograd" else None
    return (f"autograd engine: {reason}, so updates take longer.",) if reason else ()


def choose_engine(config: Config, spec: EnvSpec) -> Engine:
    """Return `accelerated` or `autograd`: the engine requested, or the faster one that this run supports."""
    if config.algo in BASELINES:
        return config.update.engine
    if config.update.engine == "autograd":
        return "autograd"
    reason = why_not_accelerated(config, Policy(spec, config))
    if reason and config.update.engine == "accelerated":
        raise ConfigError(f"update.engine is accelerated, but {reason}; use auto or autograd")
    return "autograd" if reason else "accelerated"


def _forms(config: Config) -> ModuleType | None:
    return acceleration() if config.update.engine == "accelerated" else None


def make_update_rule(policy: Policy, config: Config) -> UpdateRule:
    forms = _forms(config)
    rule: UpdateRule = forms.make_update_rule(policy, config) if forms else update_rule.make_update_rule(policy, config)
    return rule


def make_collector(policy: Policy, envs: VectorEnv, config: Config) -> RolloutCollector:
    """Make the collector; call this after making the update rule, which may move the policy to shared memory."""
    forms = _forms(config)
    collector: RolloutCollector = (
        forms.make_collector(policy, envs, config) if forms else Collector(policy, envs, config)
    )
    return collector
