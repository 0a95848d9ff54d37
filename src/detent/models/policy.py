"""The policy: everything needed to act on raw observations, and the critic trained with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Generator, Tensor, nn

from detent.config import READOUTS, Config, Readout
from detent.models.critics import make_critic_head
from detent.models.heads import make_head
from detent.models.networks import make_encoder, make_trunk
from detent.models.networks.trunks import linear
from detent.models.normalize import ObservationNormalizer
from detent.seeding import derive_seed
from detent.spec import EnvSpec, Observation

OnInvalid = Literal["raise", "hold"]
Choice = TypeVar("Choice")
_log = logging.getLogger("detent")


class Policy(nn.Module):
    """Observation normalizer, encoder, actor trunk with head, and a separate critic; everything needed to act.

    Training works in two steps, `normalize` once and then `params` or `value`, because statistics are frozen from the
    first step of a rollout to the end of its update. To deploy, call the policy: `action = policy(observation)`.
    """

    held = 0
    """How many calls in a row have repeated the last action because of an invalid observation."""
    _readout: Readout = "mode"
    _on_invalid: OnInvalid = "raise"
    _last_action: Tensor | None = None

    def __init__(self, spec: EnvSpec, config: Config) -> None:
        super().__init__()
        self.spec = spec
        size = spec.observation.size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(config.seed, "init-encoder"))
            encoder = make_encoder(spec.observation, config.encoder)
            torch.manual_seed(derive_seed(config.seed, "init"))
            self.normalizer = ObservationNormalizer(size, config.normalize.clip)
            self.normalizing = config.normalize.observation
            self.head = make_head(spec.action, config.head)
            trunk = make_trunk(encoder.num_features, config.actor, "actor")
            self.actor = nn.Sequential(
                trunk, linear(trunk.num_features, self.head.num_outputs, gain=self.head.output_gain)
            )
            # A separate stream, so that the critic's initial weights do not depend on what the actor drew.
            torch.manual_seed(derive_seed(config.seed, "init-critic"))
            critic_head = make_critic_head(config.critic)
            critic_trunk = make_trunk(encoder.num_features, config.critic, "critic")
            self.critic = nn.Sequential(
                critic_trunk, linear(critic_trunk.num_features, critic_head.num_outputs, gain=critic_head.output_gain)
            )
            self.critic_head = critic_head
            # Registered last, so that the actor's own parameters come first.
            self.encoder = encoder

    @property
    def readout(self) -> Readout:
        """How a call turns the distribution into an action; `load` sets the readout that the checkpoint remembers."""
        return self._readout

    @readout.setter
    def readout(self, readout: Readout) -> None:
        self._readout = self._checked(readout)

    def _checked(self, readout: Readout) -> Readout:
        if _one_of(readout, READOUTS, "readout") == "mean" and not self.has_mean:
            raise ValueError("the readout 'mean' is for continuous actions; those of this policy are discrete")
        return readout

    @property
    def on_invalid(self) -> OnInvalid:
        """What a call does with an invalid observation: `raise` an error, or `hold` the last action and log it."""
        return self._on_invalid

    @on_invalid.setter
    def on_invalid(self, on_invalid: OnInvalid) -> None:
        self._on_invalid = _one_of(on_invalid, get_args(OnInvalid), "value of on_invalid")

    @property
    def device(self) -> torch.device:
        return self.normalizer.shift.device

    @property
    def mean_is_mode(self) -> bool:
        """Return whether the readouts `mean` and `mode` are the same action."""
        return self.head.mean_is_mode

    @property
    def has_mean(self) -> bool:
        """Return whether there is a readout `mean`; discrete actions have none."""
        return self.head.has_mean

    @property
    def num_actor_parameters(self) -> int:
        """Return how many of the leading numbers in `parameters()` belong to the actor: its head and network."""
        return sum(p.numel() for module in (self.head, self.actor) for p in module.parameters())

    def normalize(self, observation: Observation) -> Observation:
        """Normalize raw observations for the networks."""
        if not self.normalizing:
            return observation
        return {**observation, "state": self.normalizer(observation["state"])}

    def update_statistics(self, observation: Observation) -> None:
        """Merge raw observations `[..., n]` into the normalizer."""
        if self.normalizing:
            self.normalizer.merge(observation["state"].flatten(end_dim=-2))

    @property
    def shares_encoder(self) -> bool:
        """Return whether the encoder has parameters, which actor and critic then share."""
        return next(self.encoder.parameters(), None) is not None

    def encode(self, normalized: Observation) -> Observation:
        """Compute the features that actor and critic share, once for both."""
        return {"features": self.features(normalized)}

    def features(self, normalized: Observation) -> Tensor:
        """Return the input of actor and critic for normalized, possibly encoded, observations."""
        features: Tensor = normalized["features"] if "features" in normalized else self.encoder(normalized)
        return features

    def params(self, normalized: Observation) -> Tensor:
        """Return action-distribution parameters `[B, m, P]` for normalized, possibly encoded, observations."""
        params: Tensor = self.head(self.actor(self.features(normalized)))
        return params

    def critic_outputs(self, normalized: Observation) -> Tensor:
        """Return the critic network's outputs `[B, num_outputs]` for normalized, possibly encoded, observations."""
        outputs: Tensor = self.critic(self.features(normalized))
        return outputs

    def value(self, normalized: Observation) -> Tensor:
        """Return state values `[B]` for normalized, possibly encoded, observations."""
        return self.critic_head.value(self.critic_outputs(normalized))

    @torch.no_grad()
    def act(self, observation: Observation, generator: Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sample a choice `[N, m]`; return it, its log-probability per dimension `[N, m]`, and the action."""
        params = self.params(self.normalize(observation))
        choice = self.head.sample(params, generator)
        return choice, self.head.log_prob(params, choice), self.head.to_action(choice)

    @torch.no_grad()
    def forward(self, observation: Any, readout: Readout | None = None, generator: Generator | None = None) -> Any:
        """Return the action for a raw observation, single or batched, as the environment returns it.

        Takes what the environment's observation space describes (a vector, or a Dict of vectors; a Dict of `rgb` and
        `state` if there are images) as NumPy arrays and returns a NumPy array, or takes tensors and returns a tensor.

        `readout` is `sample`, `mode` (the most probable action) or `mean` (the expected action); by default the one
        that the checkpoint remembers, `policy.readout`. An observation of the wrong shape or with NaN or infinity in it
        raises a ValueError; if `policy.on_invalid` is `hold`, the last action (of that row of a batch) is repeated.
        """
        as_tensor = any(isinstance(value, Tensor) for value in _values(observation))
        try:
            tensors, single = self._batched(observation)
            broken = self._require_finite(tensors)
        except ValueError as error:
            return self._give(self._held(error), as_tensor)
        action = self._read(self.params(self.normalize(tensors)), readout, generator)
        if broken is not None:
            action = torch.where(broken[..., None], self._held(_not_finite(tensors["state"]), action.shape), action)
        action = action[0] if single else action
        if not torch.compiler.is_compiling():
            self._last_action, self.held = action.clone(), self.held if broken is not None else 0
        return self._give(action, as_tensor)

    def _give(self, action: Tensor, as_tensor: bool) -> Any:
        """Return flat actions `[..., m]` as the environment takes them; a Discrete space takes a number."""
        spec = self.spec.action
        if spec.discrete:
            action = action.round().long()
        if spec.shape is not None:
            action = action.reshape((*action.shape[:-1], *spec.shape))
        return action if as_tensor else action.numpy(force=True)[()]

    def _read(self, params: Tensor, readout: Readout | None, generator: Generator | None) -> Tensor:
        """Return actions `[B, m]` for distribution parameters `[B, m, P]`."""
        readout = self.readout if readout is None else self._checked(readout)
        if readout == "mean":
            return self.head.mean_action(params)
        return self.head.to_action(self.head.mode(params) if readout == "mode" else self.head.sample(params, generator))

    def _require_finite(self, tensors: Observation) -> Tensor | None:
        """Refuse NaN and infinity, or return which rows `[...]` have them if their last actions are to be held."""
        if torch.compiler.is_compiling():
            # A graph cannot look at values; whoever exports it checks them outside.
            return None
        # Images are bytes.
        if "state" not in tensors or bool(tensors["state"].isfinite().all()):
            return None
        broken = ~tensors["state"].isfinite().all(-1)
        if self.on_invalid != "hold":
            raise _not_finite(tensors["state"])
        return broken

    def _held(self, error: ValueError, shape: torch.Size | None = None) -> Tensor:
        """Return the last action, of the batch's `shape` if given, where that is wanted and possible; else raise.

        Of an observation whose shape is wrong, nobody knows how many actions it asks for: one, if one was given last.
        """
        last = self._last_action
        if self.on_invalid != "hold" or last is None:
            raise error
        if shape is not None:
            last = last if last.dim() > 1 else last[None]
        if last.shape != (shape or (self.spec.action.size,)):
            raise error
        self.held += 1
        if self.held == 1:
            _log.warning("%s; the last action is held until an observation is valid again", error)
        return last.clone()

    def _batched(self, observation: Any) -> tuple[Observation, bool]:
        """Return a valid observation as batched tensors on the policy's device, and whether it was a single one."""
        tensors, spec = self._tensors(observation), self.spec.observation
        batches = set()
        for key, (shape, _) in spec.parts.items():
            found = tuple(tensors[key].shape) if key in tensors else None
            extra = -1 if found is None else len(found) - len(shape)
            if found is None or extra < 0 or found[extra:] != shape:
                raise ValueError(
                    f"the observation {f'lacks {key!r}' if found is None else f'has shape {found}'}; this policy "
                    f"takes {f'vectors of length {shape[0]}' if key == 'state' else f'images {shape}'}, "
                    "single or batched"
                )
            batches.add(found[:extra])
        if len(batches) > 1:
            raise ValueError(f"the parts of the observation have different batch sizes: {sorted(batches)}")
        single = batches == {()}
        return {key: tensor[None] for key, tensor in tensors.items()} if single else tensors, single

    def _tensors(self, observation: Any) -> Observation:
        """Return an observation as tensors by the policy's keys, on its device."""
        spec = self.spec.observation
        if isinstance(observation, Tensor):
            parts: Mapping[str, Any] = {"state": observation}
        elif spec.image or self._is_policy_state(observation):
            if not isinstance(observation, Mapping):
                raise ValueError(f"the observation is {type(observation).__name__}; this policy takes a Dict")
            parts = {key: observation[key] for key in spec.parts if key in observation}
        else:
            parts = {"state": self._state(observation)}
        # Copy arrays: torch rejects negative strides and warns about read-only memory.
        tensors = {
            key: value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
            for key, value in parts.items()
        }
        if "rgb" in tensors and tensors["rgb"].dtype != torch.uint8:
            raise ValueError(f"the images are {tensors['rgb'].dtype}; this policy takes uint8, 0 to 255")
        dtype = self.normalizer.shift.dtype
        return {key: value.to(self.device, dtype if key == "state" else None) for key, value in tensors.items()}

    def _is_policy_state(self, observation: Any) -> bool:
        """Return whether an observation is the policy's own dict of tensors; a Dict space may have a `state` too."""
        state = observation.get("state") if isinstance(observation, Mapping) else None
        keys = self.spec.observation.keys
        return isinstance(state, Tensor) and ("state" not in keys or len(observation) < len(keys))

    def _state(self, observation: Any) -> Any:
        """Return the state vector of an observation as the environment returns it."""
        keys = self.spec.observation.keys
        if keys and not isinstance(observation, Mapping):
            raise ValueError(f"the observation is {type(observation).__name__}; this policy takes a Dict with {keys}")
        missing = [key for key in keys if key not in observation]
        if missing:
            raise ValueError(f"the observation lacks {', '.join(map(repr, missing))}; this policy takes {keys}")
        try:
            return self.spec.observation.state(observation)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the observation is not made of numbers: {error}") from None


def _one_of(value: Choice, valid: tuple[Choice, ...], what: str) -> Choice:
    if value not in valid:
        raise ValueError(f"there is no {what} {value!r}; valid: {', '.join(map(str, valid))}")
    return value


def _not_finite(state: Tensor) -> ValueError:
    """Return the error about the first NaN or infinity in a batched state."""
    where = (~state.isfinite()).nonzero()[0].tolist()
    return ValueError(f"the observation 'state' is not finite: entry {where} is {state[tuple(where)]}")


def _values(observation: Any) -> Any:
    return observation.values() if isinstance(observation, Mapping) else (observation,)
