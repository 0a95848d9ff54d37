"""TD3 (Stable-Baselines3), the paper's off-policy baseline, with Detent's environments, evaluation and run directory.

An interrupted run starts over: the replay buffer is not saved, only the weights are, as safetensors. TD3's policy is
deterministic, so every readout of an evaluation runs that policy, without exploration noise.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from detent.config import Config, Readout
from detent.config.io import read_run_config
from detent.envs import Episode, VectorEnv, make_envs
from detent.errors import ConfigError
from detent.models.checkpoints import Score
from detent.paper.scores import normalized
from detent.rollouts.rollout import NonFiniteError
from detent.seeding import derive_seed
from detent.spec import EnvSpec
from detent.training.callbacks import Row, RunContext
from detent.training.dispatch import Callbacks
from detent.training.evaluate import ROW_KEYS, Evaluator, ranking, success_rates
from detent.training.run_directory import RunLog
from detent.training.signals import StopRequest
from detent.training.trainer import Result

try:
    from stable_baselines3 import TD3
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.td3.policies import TD3Policy
except ImportError:
    raise ConfigError("TD3 needs Stable-Baselines3: pip install 'detent[sb3]'") from None


class SB3Envs(VecEnv):
    """Detent's vector environment with Stable-Baselines3's interface; finished episodes accumulate in `episodes`."""

    render_mode = None

    def __init__(self, envs: VectorEnv, seed: int) -> None:
        super().__init__(envs.num_envs, *_spaces(envs.spec))
        self.spec = envs.spec
        self.episodes: list[Episode] = []
        self._envs, self._seed = envs, seed

    def reset(self) -> NDArray[np.float32]:
        return _array(self._envs.reset(self._seed)["state"])

    def step_async(self, actions: NDArray[np.float32]) -> None:
        self._actions = torch.from_numpy(actions)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        step = self._envs.step(self._actions)
        self.episodes.extend(step.episodes)
        terminated = step.terminated.numpy(force=True)
        ended = terminated | step.truncated.numpy(force=True)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(ended):
            assert step.final_observation is not None
            infos[row]["terminal_observation"] = _array(step.final_observation["state"][row])
            infos[row]["TimeLimit.truncated"] = not terminated[row]
        return _array(step.observation["state"]), step.reward.numpy(force=True), ended, infos

    def close(self) -> None:
        self._envs.close()

    def seed(self, seed: int | None = None) -> Sequence[None]:
        """Do nothing; the seed was given at construction."""
        return [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise TypeError(f"these environments have no attributes to set, not even {attr_name}")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise TypeError(f"these environments have no methods to call, not even {method_name}")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        return [False] * self.num_envs


class Actor:
    """A trained actor on raw observations, as an evaluation runs it."""

    def __init__(self, policy: TD3Policy, spec: EnvSpec) -> None:
        self._policy = policy
        self._low = torch.tensor(spec.action.low, device=policy.device)
        self._high = torch.tensor(spec.action.high, device=policy.device)

    @property
    def device(self) -> torch.device:
        device: torch.device = self._policy.device
        return device

    mean_is_mode = True
    has_mean = True

    @torch.no_grad()
    def __call__(self, observation: Any, readout: Readout = "mode", generator: Generator | None = None) -> Tensor:
        """Return actions `[B, m]` for states `[B, n]`, plain or in a dict; the policy is deterministic."""
        state = observation["state"] if isinstance(observation, Mapping) else observation
        share: Tensor = (self._policy.actor(state.to(self.device)) + 1) / 2
        return self._low + (self._high - self._low) * share


class TD3Trainer:
    """A TD3 run; each iteration takes `rollout_steps` steps per environment, with one update per transition."""

    def __init__(self, config: Config, callbacks: Callbacks) -> None:
        if config.init_from:
            raise ConfigError("a TD3 run cannot start from another run; leave --init-from out")
        self.config, self.callbacks = config, callbacks
        if config.env.obs != "state":
            raise ConfigError(f"env.obs is {config.env.obs}; TD3 here learns from states only")
        self.envs = make_envs(config.task, config.env, config.env.num_envs, config.threads)
        self._sb3_envs = SB3Envs(self.envs, derive_seed(config.seed, "envs", 0))
        self._model = _make_model(config, self._sb3_envs)
        self._actor = Actor(self._model.policy, self.envs.spec)
        self._evaluator = Evaluator(config)
        self.iteration = 0
        self._best: Score | None = None
        self._last_evaluation: Row | None = None

    @property
    def step(self) -> int:
        """Return the number of environment steps so far."""
        return self.iteration * self.config.batch_size

    def run(self, log: RunLog) -> Result:
        """Iterate until all steps are done or a stop is requested."""
        config = self.config
        notes = ("TD3 of Stable-Baselines3; an interrupted run starts over",)
        run = RunContext(self, log.path, None, log.wall_time, notes)
        self.callbacks.start(run, {}, {})
        with StopRequest(self.callbacks.message) as stop:
            self._evaluate(log)
            while self.iteration < config.iterations and not (stop.requested or run.stop_reason is not None):
                row = log.append("metrics", self._iterate())
                log.heartbeat()
                self.callbacks.emit("on_iteration", row)
                due = self.iteration % config.iterations_per(config.eval.interval) == 0
                if due or self.iteration == config.iterations:
                    self._evaluate(log)
        finished = self.iteration == config.iterations
        self._save(log.path, "latest", "final")
        reason = "all steps done" if finished else run.stop_reason or "stopped on request"
        log.set_status("finished" if finished else "stopped", reason)
        return Result(log.path, self.step, finished, reason, self._last_evaluation)

    def _iterate(self) -> Row:
        config, model = self.config, self._model
        self._sb3_envs.episodes.clear()
        started = time.perf_counter()
        model.learn(config.batch_size, log_interval=sys.maxsize, reset_num_timesteps=False)
        seconds = time.perf_counter() - started
        self.iteration += 1
        episodes = self._sb3_envs.episodes
        losses = {name: model.logger.name_to_value.get(f"train/{name}_loss") for name in ("actor", "critic")}
        if any(loss is not None and not math.isfinite(loss) for loss in losses.values()):
            raise NonFiniteError(f"the updates of iteration {self.iteration} gave {losses}")
        row: Row = {"step": self.step, "iteration": self.iteration}
        row |= {"return": None, "length": None, "score": None, "episodes": len(episodes)}
        if episodes:
            row["return"] = mean(episode.total_reward for episode in episodes)
            row["length"] = mean(episode.length for episode in episodes)
            row["score"] = normalized(config.task, row["return"])
        row |= success_rates(episodes)
        row |= {"policy_loss": losses["actor"], "value_loss": losses["critic"]}
        row |= {"learning_rate": config.td3.learning_rate}
        return row | {"time/iteration": seconds, "time/sps": config.batch_size / seconds}

    def _evaluate(self, log: RunLog) -> None:
        measured = self._evaluator.row(self._actor, self.step, self.iteration)
        self._last_evaluation = log.append("evals", measured)
        self.callbacks.emit("on_evaluation", copy.deepcopy(self._last_evaluation))
        score = ranking(measured[ROW_KEYS[self.config.eval.rank_by]])
        if self._best is None or score > self._best:
            self._best = score
            self._save(log.path, "best", "best")

    def close(self) -> None:
        self.envs.close()
        self._evaluator.close()

    def _save(self, run: Path, name: str, kind: str) -> None:
        weights = {
            key: value.contiguous()
            for key, value in self._model.policy.state_dict().items()
            if key.startswith(("actor.", "critic."))
        }
        (run / "weights").mkdir(exist_ok=True)
        temporary = run / "weights" / f".{name}.{os.getpid()}"
        save_file(weights, temporary, {"step": str(self.step)})
        path = run / "weights" / f"{name}.safetensors"
        temporary.replace(path)
        self.callbacks.emit("on_checkpoint", path, kind)


def load_actor(run: Path | str, which: str = "best") -> Actor:
    """Load the actor of a TD3 run, `best` or `latest`."""
    config = read_run_config(Path(run))
    path = Path(run) / "weights" / f"{which}.safetensors"
    if not path.exists():
        raise ConfigError(f"{run} has no TD3 weights '{which}'")
    envs = make_envs(config.task, config.env, 1, 1)
    envs.close()
    policy = TD3Policy(*_spaces(envs.spec), lambda _: 0.0, net_arch=[config.td3.width] * 2)
    # The target networks are not saved.
    policy.load_state_dict(load_file(path), strict=False)
    return Actor(policy, envs.spec)


def _make_model(config: Config, envs: SB3Envs) -> TD3:
    td3 = config.td3
    (actions,) = _spaces(envs.spec)[1].shape
    model = TD3(
        "MlpPolicy",
        envs,
        learning_rate=td3.learning_rate,
        buffer_size=min(td3.buffer_size, config.total_steps),
        learning_starts=td3.learning_starts,
        batch_size=td3.batch_size,
        tau=td3.tau,
        gamma=td3.gamma,
        # One update per transition.
        train_freq=1,
        gradient_steps=-1,
        action_noise=NormalActionNoise(np.zeros(actions), np.full(actions, td3.exploration_noise)),
        policy_delay=td3.policy_delay,
        target_policy_noise=td3.target_noise,
        target_noise_clip=td3.target_noise_clip,
        policy_kwargs={"net_arch": [td3.width, td3.width]},
        seed=derive_seed(config.seed, "init") % 2**32,
        device=config.device,
    )
    model.set_logger(Logger(None, []))
    return model


def _spaces(spec: EnvSpec) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    low, high = np.array(spec.action.low, np.float32), np.array(spec.action.high, np.float32)
    return gymnasium.spaces.Box(-np.inf, np.inf, (spec.observation.size,), np.float32), gymnasium.spaces.Box(low, high)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.numpy(force=True)
    return array
