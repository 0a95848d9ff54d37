"""Experience collection: the policy acts, the environments step, and tensors of shape [T, N, ...] are filled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from detent.envs import Episode, Observation, VectorEnv
from detent.models.policy import Policy

IMAGES_AT_ONCE = 512
"""Images that pass through the encoder together when values are computed."""


class NonFiniteError(RuntimeError):
    """An environment or an update produced NaN or infinity."""


@dataclass
class Rollout:
    """One iteration's experience; buffers are allocated once and reused.

    Observations, choices and values live on the policy's device, rewards and flags on the simulator's.
    """

    observation: Observation
    """Raw observations `[T, N, ...]`."""
    choice: Tensor
    """`[T, N, m]`, in the head's own dtype."""
    log_prob: Tensor
    """`[T, N, m]`, at the time the choice was made."""
    value: Tensor
    """`[T, N]`."""
    final_value: Tensor
    """`[T, N]`: V(final observation) where an episode ended, 0 elsewhere."""
    last_value: Tensor
    """`[N]`: V(observation after the last step)."""
    reward: Tensor
    """`[T, N]`, raw."""
    terminated: Tensor
    """`[T, N]` bool."""
    truncated: Tensor
    """`[T, N]` bool."""
    episodes: list[Episode] = field(default_factory=list)
    """Episodes that ended in this rollout."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in `act` and in `simulate`, which includes waiting for other collecting processes."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Rollout:
        """Return a rollout with `function` applied to every tensor, and nothing else."""
        tensors: dict[str, Any] = {
            key: function(value) for key, value in vars(self).items() if isinstance(value, Tensor)
        }
        return Rollout(observation={key: function(value) for key, value in self.observation.items()}, **tensors)

    def columns(self, rows: slice) -> Rollout:
        """Return the columns of the environments `rows`, in the same memory."""
        return self.map(lambda tensor: tensor[rows] if tensor is self.last_value else tensor[:, rows])

    @property
    def ended(self) -> Tensor:
        """Return which steps ended an episode, `[T, N]` bool."""
        return self.terminated | self.truncated


def allocate(policy: Policy, first: Observation, steps: int) -> Rollout:
    """Allocate buffers for `steps` steps of the environments that returned the observation `first` `[N, ...]`."""
    on_device = to_device(first, policy.device)
    # A separate generator, because a simulator may draw from torch's global one.
    choice, log_prob, _ = policy.act(on_device, torch.Generator(policy.device).manual_seed(0))
    simulator = next(iter(first.values())).device
    shape = (steps, len(choice))
    return Rollout(
        observation={key: value.new_zeros((steps, *value.shape)) for key, value in on_device.items()},
        choice=choice.new_zeros((steps, *choice.shape)),
        log_prob=log_prob.new_zeros((steps, *log_prob.shape)),
        value=log_prob.new_zeros(shape),
        final_value=log_prob.new_zeros(shape),
        last_value=log_prob.new_zeros(shape[1:]),
        reward=torch.zeros(shape, device=simulator),
        terminated=torch.zeros(shape, device=simulator, dtype=torch.bool),
        truncated=torch.zeros(shape, device=simulator, dtype=torch.bool),
    )


def to_device(observation: Observation, device: torch.device) -> Observation:
    return {key: value.to(device) for key, value in observation.items()}


FinalObservations = tuple[int, Tensor, Observation]
"""Step of the rollout, environments `[E]` whose episodes ended in it, and their final observations `[E, ...]`."""

Act = Callable[[Observation, Generator], tuple[Tensor, Tensor, Tensor]]
"""Maps raw observations to choice, log-probability and action: `Policy.act`, or a faster form of it."""


def collect(
    policy: Policy,
    envs: VectorEnv,
    observation: Observation,
    rollout: Rollout,
    generator: Generator,
    act: Act | None = None,
) -> Observation:
    """Fill `rollout`, acting on `observation` first; return the observation to act on next time."""
    act = act or policy.act
    rollout.episodes.clear()
    finals: list[FinalObservations] = []
    acting = simulating = 0.0
    clock = time.perf_counter()
    for t in range(len(rollout.reward)):
        observation = to_device(observation, policy.device)
        choice, log_prob, action = act(observation, generator)
        for key, value in observation.items():
            rollout.observation[key][t] = value
        rollout.choice[t] = choice
        rollout.log_prob[t] = log_prob
        acted = time.perf_counter()
        step = envs.step(action)
        simulated = time.perf_counter()
        observation = step.observation
        rollout.reward[t] = step.reward
        rollout.terminated[t] = step.terminated
        rollout.truncated[t] = step.truncated
        if step.final_observation is not None:
            # The one read of such a step: how many episodes ended.
            rows = (step.terminated | step.truncated).nonzero().squeeze(-1)
            finals.append((t, rows, {key: value[rows] for key, value in step.final_observation.items()}))
            rollout.episodes.extend(step.episodes)
        acting += acted - clock
        simulating += simulated - acted
        clock = simulated
    _fill_values(policy, rollout, finals, observation)
    rollout.seconds = {"act": acting + time.perf_counter() - clock, "simulate": simulating}
    return observation


@torch.no_grad()
def _fill_values(policy: Policy, rollout: Rollout, finals: list[FinalObservations], last: Observation) -> None:
    """Compute the critic's values in two large batches instead of one small batch per step."""
    flat = {key: value.flatten(end_dim=1) for key, value in rollout.observation.items()}
    rollout.value.copy_(_values(policy, flat).view_as(rollout.value))
    rollout.last_value.copy_(policy.value(policy.normalize(to_device(last, policy.device))))
    rollout.final_value.zero_()
    if finals:
        joined = to_device({key: torch.cat([final[key] for _, _, final in finals]) for key in last}, policy.device)
        times = torch.cat([torch.full_like(rows, t) for t, rows, _ in finals]).to(policy.device)
        envs = torch.cat([rows for _, rows, _ in finals]).to(policy.device)
        rollout.final_value[times, envs] = _values(policy, joined)


def _values(policy: Policy, observation: Observation) -> Tensor:
    """Return values `[B]` of raw observations; images are processed in pieces to bound the memory of their features."""
    if "rgb" not in observation:
        return policy.value(policy.normalize(observation))
    pieces = zip(*(value.split(IMAGES_AT_ONCE) for value in observation.values()), strict=True)
    return torch.cat([policy.value(policy.normalize(dict(zip(observation, piece, strict=True)))) for piece in pieces])


def checksum(rollout: Rollout, bootstrap_on_termination: bool) -> Tensor:
    """Return a scalar that is not finite if any observation or reward is not."""
    parts = _parts(rollout, bootstrap_on_termination)
    return torch.stack([part.sum() for part in parts.values()] + [rollout.last_value.sum()]).sum()


def require_finite(rollout: Rollout, bootstrap_on_termination: bool, checksum: float) -> None:
    """Raise an error that names the environment if `checksum` shows a NaN or infinite observation or reward."""
    if math.isfinite(checksum):
        return
    for what, tensor in _parts(rollout, bootstrap_on_termination).items():
        require_finite_rows(tensor, what)
    require_finite_rows(rollout.last_value[None], "observation (or value of it)", "after the rollout")


def _parts(rollout: Rollout, bootstrap_on_termination: bool) -> dict[str, Tensor]:
    """Return what the environments produced, `[T, N, ...]`, by description."""
    # Observations that were never acted on are checked through the critic's value of them.
    device = rollout.value.device
    used = rollout.truncated.to(device) & ~rollout.terminated.to(device)
    if bootstrap_on_termination:
        used = rollout.ended.to(device)
    parts = {
        f"observation '{key}'": tensor for key, tensor in rollout.observation.items() if tensor.is_floating_point()
    }
    parts["reward"] = rollout.reward.to(device)
    parts["final observation (or value of it)"] = torch.where(used, rollout.final_value, 0.0)
    return parts


def require_finite_rows(tensor: Tensor, what: str, where: str = "of the rollout") -> None:
    """Raise an error that names the environment if `tensor` `[T, N, ...]` has NaN or infinite entries."""
    bad = (~tensor.isfinite()).flatten(start_dim=1).view(len(tensor), tensor.shape[1], -1).any(-1)
    if bad.any():
        t, env = (int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(f"environment {env} gave a non-finite {what} at step {t} {where}")
