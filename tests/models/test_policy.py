from __future__ import annotations

import copy
import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from detent.config import ActorConfig, Config, CriticConfig, HeadConfig, NormalizeConfig
from detent.config.presets import configure
from detent.envs.spaces import observation_spec
from detent.models.networks.trunks import MLP, RegularizedNetwork
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

VARIANTS = ("rn-d", "rn-c", "mlp-d", "mlp-c")
ACTION = ActionSpec((-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4))
SPEC = EnvSpec(ObservationSpec(4), ACTION)
SMALL = Config(actor=ActorConfig(width=16, depth=1), critic=CriticConfig(width=8), head=HeadConfig(bins=7))
Array = NDArray[np.float32]


def make(config: Config = SMALL, spec: EnvSpec = SPEC) -> Policy:
    """A policy that prefers different actions in different states, with statistics of its own."""
    policy = Policy(spec, config)
    last = policy.actor[1]
    assert isinstance(last, nn.Linear)
    last.weight.data *= 100
    rng = np.random.default_rng(0)
    policy.update_statistics({"state": torch.from_numpy(5 + 3 * rng.standard_normal((100, 4))).float()})
    return policy


def observations(size: int, seed: int = 1) -> Array:
    return (5 + 3 * np.random.default_rng(seed).standard_normal((size, 4))).astype(np.float32)


def last_layer(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Sequential)
    layer = module[1]
    assert isinstance(layer, nn.Linear)
    return layer


def test_the_most_probable_action_is_the_one_computed_by_hand() -> None:
    config = dataclasses.replace(SMALL, actor=ActorConfig(kind="mlp", depth=0))
    policy = make(config)
    # Depth 0: logits are one linear function of the normalized observation.
    x = observations(50)
    seen = (5 + 3 * np.random.default_rng(0).standard_normal((100, 4))).astype(np.float32).astype(np.float64)
    layer = last_layer(policy.actor)
    normalized = (x - seen.mean(0)) / seen.std(0)
    logits = normalized @ layer.weight.detach().numpy().astype(np.float64).T
    chosen = logits.reshape(50, 3, 7).argmax(-1)
    low, high = np.array(ACTION.low), np.array(ACTION.high)
    np.testing.assert_allclose(policy(x), low + chosen * (high - low) / 6, rtol=1e-6, atol=1e-7)
    assert len(np.unique(chosen)) > 3


def test_single_and_batched_arrays_give_arrays_of_their_shape() -> None:
    policy, x = make(), observations(6)
    batched = policy(x)
    assert isinstance(batched, np.ndarray)
    assert (batched.shape, batched.dtype) == ((6, 3), np.float32)
    single = policy(x[2])
    assert single.shape == (3,)
    np.testing.assert_array_equal(single, batched[2])
    np.testing.assert_array_equal(policy(x.reshape(2, 3, 4)), batched.reshape(2, 3, 3))


def test_what_environments_give_is_taken_whatever_its_type_and_layout() -> None:
    policy, x = make(), observations(6)
    expected = policy(x)
    locked = x.copy()
    locked.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (x.astype(np.float64), x.tolist(), locked, np.asfortranarray(x), x[::-1].copy()[::-1]):
            np.testing.assert_array_equal(policy(given), expected)


def test_the_observation_given_is_left_as_it_was() -> None:
    policy, x = make(), observations(6)
    before = x.copy()
    policy(x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_gives_a_tensor(dtype: torch.dtype) -> None:
    policy, x = make(), observations(6)
    action = policy(torch.from_numpy(x).to(dtype))
    assert isinstance(action, torch.Tensor)
    assert not action.requires_grad
    np.testing.assert_array_equal(action, policy(x))


def test_dict_observations_are_concatenated_in_the_order_of_the_space() -> None:
    space = spaces.Dict({"z": spaces.Box(-9, 9, (3,)), "a": spaces.Box(-9, 9, (1,))})
    policy = make(spec=EnvSpec(observation_spec(space), ACTION))
    x = observations(6)
    # Gymnasium sorts the keys of a Dict space: a, z.
    given = {"z": x[:, 1:], "a": x[:, :1]}
    np.testing.assert_array_equal(policy(given), make()(x))
    np.testing.assert_array_equal(policy({key: part[0] for key, part in given.items()}), make()(x)[0])


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 3), ()])
def test_an_observation_of_wrong_length_is_refused_in_a_sentence(shape: tuple[int, ...]) -> None:
    policy = make()
    sentence = r"^the observation has shape \(.*\); this policy takes vectors of length 4, single or batched$"
    with pytest.raises(ValueError, match=sentence):
        policy(np.zeros(shape))
    with pytest.raises(ValueError, match=sentence):
        policy(torch.zeros(shape))


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_deterministic_play_repeats_itself_and_sampled_play_does_not(kind: str) -> None:
    head = HeadConfig(kind="categorical" if kind == "categorical" else "gaussian")
    policy, x = make(dataclasses.replace(SMALL, head=head)), observations(20)
    np.testing.assert_array_equal(policy(x), policy(x, readout="mode"))
    assert (policy(x, readout="sample") != policy(x, readout="sample")).any()
    box = Box(np.asarray(ACTION.low, np.float32), np.asarray(ACTION.high, np.float32))
    assert all(box.contains(action) for action in policy(x, readout="sample"))
    again = [policy(x, readout="sample", generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_sampled_actions_have_the_probabilities_of_the_policy() -> None:
    policy = make()
    x = observations(1)
    probabilities = policy.params(policy.normalize({"state": torch.from_numpy(x)}))[0].exp().detach().double().numpy()
    actions = policy(np.repeat(x, 4000, axis=0), readout="sample", generator=torch.Generator().manual_seed(0))
    for dimension in range(3):
        low, high = ACTION.low[dimension], ACTION.high[dimension]
        bins = np.rint((actions[:, dimension] - low) / (high - low) * 6).astype(int)
        expected = 4000 * probabilities[dimension] / probabilities[dimension].sum()
        enough = expected > 5
        found = np.bincount(bins, minlength=7)
        pooled = [*found[enough], found[~enough].sum()], [*expected[enough], expected[~enough].sum() + 1e-9]
        assert stats.chisquare(pooled[0], pooled[1], sum_check=False).pvalue > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_acting_follows_the_weights_wherever_they_are(variant: str) -> None:
    policy = make(configure("Hopper-v4", variant=variant, overrides={"actor.width": 8}))
    observation = {"state": torch.from_numpy(observations(9))}
    policy.act(observation)
    other = copy.deepcopy(policy)
    weights = {key: value + 0.1 for key, value in policy.state_dict().items() if key.startswith("actor.")}
    other.load_state_dict(weights, strict=False, assign=True)
    for each in (policy, other):
        choice, _, _ = each.act(observation, torch.Generator().manual_seed(0))
        params = each.params(each.normalize(observation)).detach()
        assert torch.equal(choice, each.head.sample(params, torch.Generator().manual_seed(0)))
    assert not torch.equal(params, policy.params(policy.normalize(observation)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_acting_returns_a_choice_with_its_own_log_probability_and_action(variant: str) -> None:
    policy = make(configure("Hopper-v4", variant=variant, overrides={"actor.width": 8}))
    observation = {"state": torch.from_numpy(observations(9))}
    choice, log_prob, action = policy.act(observation, torch.Generator().manual_seed(0))
    params = policy.params(policy.normalize(observation)).detach()
    assert torch.equal(choice, policy.head.sample(params, torch.Generator().manual_seed(0)))
    assert torch.equal(log_prob, policy.head.log_prob(params, choice))
    assert torch.equal(action, policy.head.to_action(choice))
    assert log_prob.shape == action.shape == (9, 3)
    assert not log_prob.requires_grad


def test_the_four_variants_are_two_networks_by_two_heads_and_one_critic() -> None:
    policies = {variant: Policy(SPEC, configure("Hopper-v4", variant=variant)) for variant in VARIANTS}
    critic = policies["rn-d"].critic.state_dict()
    for variant, policy in policies.items():
        assert isinstance(policy.actor, nn.Sequential)
        assert isinstance(policy.actor[0], RegularizedNetwork if variant.startswith("rn") else MLP)
        assert last_layer(policy.actor).out_features == (3 * 41 if variant.endswith("-d") else 3)
        # The same critic to the bit, so that a difference between variants is a difference between actors.
        theirs = policy.critic.state_dict()
        assert theirs.keys() == critic.keys()
        assert all(torch.equal(theirs[key], critic[key]) for key in critic), variant


def test_actor_and_critic_share_nothing() -> None:
    policy = make()
    value = policy.value({"state": torch.zeros(1, 4)}).sum()
    gradients = torch.autograd.grad(value, list(policy.actor.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in gradients)
    params = policy.params({"state": torch.zeros(1, 4)})[0, 0, 0]
    gradients = torch.autograd.grad(params, list(policy.critic.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in gradients)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_last_layers_start_with_gain_one_hundredth_and_one(variant: str) -> None:
    policy = Policy(SPEC, configure("Hopper-v4", variant=variant, overrides={"actor.width": 16}))
    for layer, gain in ((last_layer(policy.actor), 0.01), (last_layer(policy.critic), 1.0)):
        singular_values = np.linalg.svd(layer.weight.detach().numpy(), compute_uv=False)
        np.testing.assert_allclose(singular_values, gain, rtol=1e-4)
        assert (layer.bias == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_fresh_policy_is_almost_without_preference(variant: str) -> None:
    policy = Policy(SPEC, configure("Hopper-v4", variant=variant))
    params = policy.params({"state": torch.randn(50, 4, generator=torch.Generator().manual_seed(0))}).detach()
    # Uniform bins: log 41. A Gaussian of standard deviation 1: (1 + log 2 pi) / 2, and a mean near 0.
    expected = math.log(41) if variant.endswith("-d") else 0.5 * (1 + math.log(2 * math.pi))
    np.testing.assert_allclose(policy.head.entropy(params), expected, atol=2e-3)
    if variant.endswith("-c"):
        assert params[..., 0].abs().max() < 0.2


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = Policy(SPEC, SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    second, other = Policy(SPEC, SMALL), Policy(SPEC, dataclasses.replace(SMALL, seed=2))
    for one, same, different in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        assert one.dim() == 1 or not torch.equal(one, different)


def test_statistics_are_of_all_steps_and_environments_and_can_be_switched_off() -> None:
    rows = torch.from_numpy(observations(60).reshape(12, 5, 4))
    policy = Policy(SPEC, SMALL)
    policy.update_statistics({"state": rows})
    double = rows.reshape(60, 4).double().numpy()
    np.testing.assert_allclose(policy.normalizer.mean, double.mean(0), rtol=1e-12)
    np.testing.assert_allclose(policy.normalizer.var, double.var(0), rtol=1e-10)
    expected = np.clip((double - double.mean(0)) / double.std(0), -10, 10).reshape(12, 5, 4)
    np.testing.assert_allclose(policy.normalize({"state": rows})["state"], expected, atol=1e-5)

    plain = Policy(SPEC, dataclasses.replace(SMALL, normalize=NormalizeConfig(observation=False)))
    plain.update_statistics({"state": rows})
    assert plain.normalizer.count == 0
    assert torch.equal(plain.normalize({"state": rows})["state"], rows)


def test_a_loaded_policy_acts_as_the_saved_one() -> None:
    saved, loaded, x = make(), Policy(SPEC, dataclasses.replace(SMALL, seed=9)), observations(20)
    assert (loaded(x) != saved(x)).any()
    loaded.load_state_dict(saved.state_dict())
    np.testing.assert_array_equal(loaded(x), saved(x))
    assert "head.bins" in saved.state_dict()
