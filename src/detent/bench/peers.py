"""Stable-Baselines3's PPO on the same work, as its users would write it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from detent.config import Config
from detent.envs import env_spec
from detent.models.networks import make_trunk
from detent.spec import bin_positions


class Bins(gymnasium.ActionWrapper[Any, Any, Any]):
    """Restricts each action dimension to one of K positions."""

    def __init__(self, env: gymnasium.Env[Any, Any], positions: NDArray[np.float64]) -> None:
        super().__init__(env)
        self._positions = positions
        self.action_space = spaces.MultiDiscrete([positions.shape[1]] * len(positions))

    def action(self, action: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._positions[np.arange(len(self._positions)), action]


class CustomNetworks(ActorCriticPolicy):
    """A policy with the networks of `config`."""

    def __init__(self, *arguments: Any, config: Config, **options: Any) -> None:
        self._config = config
        super().__init__(*arguments, **options)

    def _build_mlp_extractor(self) -> None:
        config = self._config
        actor = make_trunk(self.features_dim, config.actor, "actor")
        critic = make_trunk(self.features_dim, config.critic, "critic")
        self.mlp_extractor = MlpExtractor(self.features_dim, [], nn.Tanh)
        self.mlp_extractor.policy_net, self.mlp_extractor.value_net = nn.Sequential(actor), nn.Sequential(critic)
        self.mlp_extractor.latent_dim_pi, self.mlp_extractor.latent_dim_vf = actor.num_features, critic.num_features


def make_env(config: Config) -> VecEnv:
    """Make environments that step one after the other in this process, with running normalization."""
    wrapper: dict[str, Any] = {}
    if config.head.kind == "categorical":
        positions = bin_positions(env_spec(config.task, config.env).action, config.head.bins)
        wrapper = {"wrapper_class": Bins, "wrapper_kwargs": {"positions": positions}}
    envs = make_vec_env(
        config.task, n_envs=config.env.num_envs, seed=config.seed, env_kwargs=config.env.kwargs, **wrapper
    )
    return VecNormalize(
        envs,
        norm_obs=config.normalize.observation,
        norm_reward=config.normalize.reward,
        clip_obs=config.normalize.clip,
        clip_reward=config.normalize.clip,
        gamma=config.advantage.gamma,
    )


def make_model(config: Config) -> PPO:
    """Make PPO with the hyper-parameters of `config`; plain MLPs are the library's own."""
    update = config.update
    policy: type[ActorCriticPolicy] = ActorCriticPolicy
    networks: dict[str, Any]
    if config.actor.kind == config.critic.kind == "mlp" and config.actor.activation == config.critic.activation:
        widths = {"pi": [config.actor.width] * config.actor.depth, "vf": [config.critic.width] * config.critic.depth}
        networks = {"net_arch": widths, "activation_fn": {"tanh": nn.Tanh, "relu": nn.ReLU}[config.actor.activation]}
        networks["log_std_init"] = config.head.log_std_init
    else:
        policy, networks = CustomNetworks, {"config": config}
    return PPO(
        policy,
        make_env(config),
        learning_rate=update.learning_rate,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size // update.minibatches,
        n_epochs=update.epochs,
        gamma=config.advantage.gamma,
        gae_lambda=config.advantage.gae_lambda,
        clip_range=config.ppo.clip,
        clip_range_vf=update.value_clip or None,
        normalize_advantage=update.normalize_advantages,
        ent_coef=update.entropy_coef,
        vf_coef=update.value_coef / 2,
        max_grad_norm=update.max_grad_norm or float("inf"),
        target_kl=update.target_kl or None,
        policy_kwargs={
            **networks,
            "optimizer_kwargs": {"eps": update.adam_eps, "weight_decay": update.weight_decay},
        },
        seed=config.seed,
        device="cpu",
    )


class StableBaselines:
    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config.threads)
        self._model = make_model(config)
        no_callbacks: list[BaseCallback] = []
        _, self._callback = self._model._setup_learn(10**12, CallbackList(no_callbacks))

    def one_slice(self) -> dict[str, float]:
        model = self._model
        assert model.env is not None
        started = time.perf_counter()
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, model.n_steps)
        collected = time.perf_counter()
        model.train()
        return {"collect": collected - started, "update": time.perf_counter() - collected}
