"""Fast forms of acting and updating: hand-written passes, flat Adam, worker processes.

Used if every module of a run has a fast form; `missing_form` names the first one that has none. Optional: nothing below
`training` imports this package, and training works without it.
"""

from __future__ import annotations

from detent.acceleration.collector import AcceleratedCollector
from detent.acceleration.critic_gradients import CRITIC_GRADIENTS
from detent.acceleration.likelihoods import LIKELIHOODS, LOSS_GRADIENTS
from detent.acceleration.manual_backprop import has_hooks, unfusable
from detent.acceleration.update import AcceleratedCriticRegression, AcceleratedMinibatchUpdate
from detent.acceleration.worker_group import supported as processes_supported
from detent.algorithms.losses import LOSSES, make_policy_loss
from detent.algorithms.trpo import TRPO
from detent.algorithms.update_rule import UPDATE_RULES, UpdateRule, algorithm_plugin
from detent.config import Config
from detent.envs import VectorEnv
from detent.models.networks.encoders import NatureEncoder
from detent.models.policy import Policy

__all__ = ["make_collector", "make_update_rule", "missing_form", "processes_supported"]


def missing_form(policy: Policy, config: Config) -> str | None:
    """Name the first part of a run that has no fast form, for a message; return None if every part has one."""
    if type(policy) is not Policy:
        return f"the policy {type(policy).__name__}"
    algorithm = algorithm_plugin(config)
    if algorithm.registry is LOSSES and LOSSES.get(config.algo) not in LOSS_GRADIENTS:
        return f"the loss '{config.algo}'"
    if algorithm.registry is UPDATE_RULES and UPDATE_RULES.get(config.algo) is not TRPO:
        return f"the update rule '{config.algo}'"
    if type(policy.head) not in LIKELIHOODS:
        return f"the head {type(policy.head).__name__}"
    critic = type(policy.critic_head)
    if critic not in CRITIC_GRADIENTS:
        return f"the critic {critic.__name__}"
    if any(True for _ in policy.critic_head.parameters()):
        return f"the critic {critic.__name__}, which has parameters of its own,"
    if type(policy.encoder) is not NatureEncoder:
        return f"the encoder {type(policy.encoder).__name__}"
    for name in ("actor", "critic"):
        part = unfusable(getattr(policy, name))
        if part is not None:
            return f"the {name}'s {part}"
    for name in ("head", "critic_head", "encoder", "normalizer"):
        module = getattr(policy, name)
        if has_hooks(module):
            return f"the {name}, which has hooks,"
        if any(not parameter.requires_grad for parameter in module.parameters()):
            return f"the {name}, which has frozen parameters,"
    return None


def make_update_rule(policy: Policy, config: Config) -> UpdateRule:
    if algorithm_plugin(config).registry is UPDATE_RULES:
        return TRPO(policy, config, AcceleratedCriticRegression(policy, config.update))
    return AcceleratedMinibatchUpdate(policy, make_policy_loss(config), config.update)


def make_collector(policy: Policy, envs: VectorEnv, config: Config) -> AcceleratedCollector:
    """Make a collector with as many processes as the update, or with one if the environments cannot be divided."""
    return AcceleratedCollector(policy, envs, config, config.update.processes if hasattr(envs, "part") else 1)
