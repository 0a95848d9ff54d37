"""Policies that see images: the encoder, what actor and critic share of it, and who may move it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import correlate2d
from torch import Tensor, nn

from detent.acceleration.update import AcceleratedCriticRegression, AcceleratedMinibatchUpdate
from detent.algorithms.losses import make_policy_loss
from detent.algorithms.minibatch import MinibatchUpdate, report, run_epochs, total_loss
from detent.algorithms.trpo import TRPO
from detent.algorithms.update_rule import UpdateRule
from detent.analysis.gradient_probe import policy_gradient
from detent.config import (
    ActorConfig,
    Config,
    CriticConfig,
    EncoderConfig,
    EnvConfig,
    HeadConfig,
    NormalizeConfig,
    TRPOConfig,
    UpdateConfig,
    validate,
)
from detent.envs import Observation, Step, choose_backend
from detent.errors import ConfigError
from detent.models.networks.encoders import NatureCNN, NatureEncoder
from detent.models.policy import Policy
from detent.rollouts.batch import Batch
from detent.rollouts.rollout import allocate, collect
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

# The smallest picture that three convolutions leave one pixel of: 36 -> 8 -> 3 -> 1.
IMAGE = (36, 36, 3)
ACTION = ActionSpec((-3.0, 0.0), (-1.0, 10.0))
SPEC = EnvSpec(ObservationSpec(4, image=IMAGE), ACTION)
ALONE = EnvSpec(ObservationSpec(0, image=IMAGE), ACTION)
CONFIG = Config(
    env=EnvConfig(obs="rgb+state"),
    encoder=EncoderConfig(width=6),
    actor=ActorConfig(width=8, depth=1),
    critic=CriticConfig(width=8),
    head=HeadConfig(bins=5),
    normalize=NormalizeConfig(observation=False),
    update=UpdateConfig(epochs=2, minibatches=4),
)
SIZE = 24


def observations(size: int, spec: EnvSpec = SPEC, seed: int = 0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    # Noise alone looks the same to a convolution; every picture has a brightness of its own.
    noise, brightness = (torch.rand(shape, generator=generator) for shape in ((size, *IMAGE), (size, 1, 1, 1)))
    pictures = (255 * noise * brightness).to(torch.uint8)
    state = torch.randn(size, 4, generator=generator)
    return {"rgb": pictures} | ({"state": state} if spec.observation.size else {})


def make_policy(spec: EnvSpec = SPEC, config: Config = CONFIG) -> Policy:
    """A policy whose actions depend on what it sees."""
    policy = Policy(spec, config)
    last = policy.actor[1]
    assert isinstance(last, nn.Linear)
    last.weight.data *= 100
    return policy


@torch.no_grad()
def make_rows(policy: Policy, observation: Observation) -> Batch:
    """What a rollout of the policy would leave, with random advantages and returns."""
    generator = torch.Generator().manual_seed(1)
    params = policy.params(observation)
    choice = policy.head.sample(params, generator)
    advantages, returns = torch.randn(2, len(choice), generator=generator).to(params.dtype)
    log_prob = policy.head.log_prob(params, choice)
    return Batch(observation, choice, log_prob, policy.value(observation), advantages, returns)


def test_the_network_is_three_convolutions_and_a_projection_of_pixels_between_zero_and_one() -> None:
    network = NatureCNN(IMAGE, 5).double()
    picture = observations(1)["rgb"]
    layers = [layer for layer in network.convolutions if isinstance(layer, nn.Conv2d)]
    hidden: NDArray[np.float64] = picture[0].numpy().transpose(2, 0, 1) / 255
    for layer, stride in zip(layers, (4, 2, 1), strict=True):
        weight = layer.weight.detach().numpy()
        sums = [
            sum(correlate2d(hidden[c], weight[o, c], "valid") for c in range(len(hidden))) for o in range(len(weight))
        ]
        hidden = np.maximum(np.stack(sums)[:, ::stride, ::stride], 0)
    assert hidden.shape == (64, 1, 1)
    expected = np.maximum(network.projection.weight.detach().numpy() @ hidden.reshape(64), 0)
    np.testing.assert_allclose(network(picture)[0].detach(), expected, rtol=1e-10)


def test_features_are_those_of_the_picture_beside_a_linear_layer_of_the_state() -> None:
    both, alone = (NatureEncoder(spec.observation, EncoderConfig(width=6)) for spec in (SPEC, ALONE))
    assert (both.num_features, alone.num_features) == (12, 6)
    seen = observations(3)
    features = both(seen)
    assert both.state is not None
    torch.testing.assert_close(features, torch.cat([both.images(seen["rgb"]), both.state(seen["state"])], dim=1))
    assert alone(observations(3, ALONE)).shape == (3, 6)


def test_a_state_vector_needs_no_encoder() -> None:
    policy = Policy(EnvSpec(ObservationSpec(4), ACTION), CONFIG)
    assert list(policy.encoder.parameters()) == []
    assert not policy.shares_encoder
    state = {"state": torch.ones(2, 4)}
    assert policy.encoder(state) is state["state"]
    assert policy.features(state) is state["state"]
    encoded = policy.encode(state)
    assert policy.features(encoded) is state["state"]


@pytest.mark.parametrize("spec", [SPEC, ALONE])
def test_arrays_and_tensors_single_and_batched_give_the_same_actions(spec: EnvSpec) -> None:
    policy, seen = make_policy(spec), observations(4, spec)
    batched = policy(seen)
    assert isinstance(batched, Tensor)
    assert len(torch.unique(batched, dim=0)) > 1
    arrays = {key: value.numpy() for key, value in seen.items()}
    np.testing.assert_array_equal(policy(arrays), batched.numpy())
    single = policy({key: value[2] for key, value in arrays.items()})
    assert isinstance(single, np.ndarray)
    np.testing.assert_allclose(single, batched[2], atol=1e-6)


def test_an_observation_that_does_not_fit_is_refused() -> None:
    policy, seen = make_policy(), observations(2)
    with pytest.raises(ValueError, match=r"lacks 'rgb'; this policy takes images \(36, 36, 3\)"):
        policy({"state": seen["state"]})
    with pytest.raises(ValueError, match=r"has shape \(2, 36, 36, 1\); this policy takes images"):
        policy({**seen, "rgb": seen["rgb"][..., :1]})


def test_pictures_are_stored_as_bytes_and_values_are_those_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.rollouts.rollout.IMAGES_AT_ONCE", 5)
    policy = make_policy()
    envs: Any = Slideshow()
    rollout = allocate(policy, envs.reset(0), 6)
    collect(policy, envs, envs.reset(0), rollout, torch.Generator().manual_seed(0))
    assert rollout.observation["rgb"].dtype == torch.uint8
    assert rollout.observation["rgb"].shape == (6, 2, *IMAGE)
    flat = {key: value.flatten(end_dim=1) for key, value in rollout.observation.items()}
    torch.testing.assert_close(rollout.value.flatten(), policy.value(flat).detach())
    batch = Batch.from_rollout(policy, rollout, rollout.reward, CONFIG.advantage)
    assert batch.observation["rgb"].data_ptr() == rollout.observation["rgb"].data_ptr(), "no second copy"
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    pieces = list(batch.minibatches(order, 4))
    assert torch.equal(torch.cat([piece.observation["rgb"] for piece in pieces]), flat["rgb"][order])
    assert torch.equal(torch.cat([piece.log_prob for piece in pieces]), batch.log_prob[order])


class Slideshow:
    """Two environments that show random pictures; one of them ends in every third step."""

    num_envs, spec = 2, SPEC

    def reset(self, seed: int) -> Observation:
        self.t = 0
        return observations(2)

    def step(self, action: Tensor) -> Step:
        self.t += 1
        ended = torch.tensor([False, self.t % 3 == 0])
        final = observations(2, seed=100 + self.t) if ended.any() else None
        return Step(observations(2, seed=self.t), torch.ones(2), ended, torch.zeros(2, dtype=torch.bool), final, ())


def test_the_loss_encodes_once_and_moves_the_encoder_by_actor_and_critic() -> None:
    policy = make_policy()
    batch = make_rows(policy, observations(SIZE))
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    policy.encoder.register_forward_hook(count)
    loss_function = make_policy_loss(CONFIG)
    loss, outputs = total_loss(policy, batch, loss_function, CONFIG.update)
    metrics = report(policy, outputs, batch, loss_function, CONFIG.update)
    assert calls == 1
    whole = torch.autograd.grad(loss, list(policy.encoder.parameters()), retain_graph=True)
    parts = [
        torch.autograd.grad(metrics[name], list(policy.encoder.parameters()), retain_graph=True)
        for name in ("policy_loss", "value_loss")
    ]
    for both, actor, critic in zip(whole, *parts, strict=True):
        assert critic.abs().max() > 0
        torch.testing.assert_close(both, actor + 0.5 * critic)


def test_gradient_diagnostics_leave_the_shared_encoder_out() -> None:
    policy = make_policy()
    batch = make_rows(policy, observations(SIZE))
    own = sum(p.numel() for module in (policy.head, policy.actor) for p in module.parameters())
    assert policy.num_actor_parameters == own
    assert policy_gradient(policy, batch, True)[0].numel() == own
    rule = AcceleratedMinibatchUpdate(policy, make_policy_loss(CONFIG), CONFIG.update)
    assert rule.optimizer.watched == own
    # The first numbers of the flat buffer are the actor's own parameters.
    flat = torch.cat([p.flatten() for module in (policy.head, policy.actor) for p in module.parameters()])
    assert torch.equal(rule.optimizer.flat[:own], flat)


@pytest.mark.parametrize("trunk", ["rn", "mlp", "simba", "simba-v2", "bronet"])
def test_both_engines_measure_the_same_gradients_and_move_the_encoder_alike(trunk: str) -> None:
    observation = observations(SIZE)
    observation["state"] = observation["state"].double()
    config = replace(CONFIG, actor=replace(CONFIG.actor, kind=trunk), critic=replace(CONFIG.critic, kind=trunk))
    policies = [make_policy(config=config).double(), make_policy(config=config).double()]
    batch = make_rows(policies[0], observation)
    found = []
    rules: list[UpdateRule] = [
        MinibatchUpdate(policies[0], make_policy_loss(CONFIG), CONFIG.update),
        AcceleratedMinibatchUpdate(policies[1], make_policy_loss(CONFIG), CONFIG.update),
    ]
    for rule, policy in zip(rules, policies, strict=True):
        before = copies(policy.encoder)
        found.append(rule.update(batch, 1e-3, torch.Generator().manual_seed(0)))
        assert not same(before, copies(policy.encoder))
    assert found[1] == pytest.approx(found[0], rel=1e-8, abs=1e-12)
    for one, other in zip(*(policy.parameters() for policy in policies), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def make_trpo(accelerated: bool = False) -> tuple[TRPO, Batch]:
    config = replace(CONFIG, algo="trpo", trpo=TRPOConfig(chunk=7))
    policy = make_policy(config=config).double()
    observation = observations(SIZE)
    observation["state"] = observation["state"].double()
    critic = AcceleratedCriticRegression(policy, config.update) if accelerated else None
    return TRPO(policy, config, critic), make_rows(policy, observation)


def test_trpo_sees_the_whole_path_from_pixels_to_actions() -> None:
    """The Fisher-vector product against the Hessian of the KL by double backpropagation, through the convolutions."""
    rule, batch = make_trpo()
    policy, old = rule.actor.policy, rule.actor.flat.detach().clone()
    encoder = sum(p.numel() for p in policy.encoder.parameters())
    assert old.numel() == policy.num_actor_parameters + encoder
    before = rule.actor.at(old, batch.observation).detach()

    def mean_kl(new: Tensor) -> Tensor:
        return policy.head.kl(before, rule.actor.at(new, batch.observation)).sum(-1).mean()

    vector = torch.randn(old.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, product = torch.autograd.functional.hvp(mean_kl, old, vector)
    assert product[-encoder:].abs().max() > 1e-4
    torch.testing.assert_close(rule.fisher_product(batch, vector, 0.1), product + 0.1 * vector, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("accelerated", [False, True])
def test_trpos_critic_learns_without_moving_the_shared_encoder(
    accelerated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, batch = make_trpo(accelerated)
    policy = rule.actor.policy
    seen: dict[str, list[Tensor]] = {"before": copies(policy.encoder)}
    critic = copies(policy.critic)

    def run_epochs_watched(*arguments: Any) -> dict[str, float]:
        seen["after the step"] = copies(policy.encoder)
        return run_epochs(*arguments)

    monkeypatch.setattr("detent.algorithms.minibatch.run_epochs", run_epochs_watched)
    monkeypatch.setattr("detent.acceleration.update.run_epochs", run_epochs_watched)
    metrics = rule.update(batch, 1e-2, torch.Generator().manual_seed(0))
    assert metrics["line_search_failed"] == 0
    assert metrics["kl"] <= 0.01
    assert not same(seen["before"], seen["after the step"]), "the actor's step moves it, within the trust region"
    assert same(seen["after the step"], copies(policy.encoder)), "the critic does not"
    assert not same(critic, copies(policy.critic))


def copies(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_normalizing_a_state_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"normalize\.observation is for state vectors"):
        validate(Config("PushCube-v1", env=EnvConfig(obs="rgb")))


@pytest.mark.parametrize(
    ("task", "env", "sentence"),
    [
        ("Ant-v4", EnvConfig(obs="rgb"), "env.obs is rgb; only ManiSkill tasks have images"),
        ("Ant-v4", EnvConfig(backend="physx_cpu"), "Ant-v4 is not a ManiSkill task"),
        ("PushCube-v1", EnvConfig(backend="envpool"), "PushCube-v1 is a ManiSkill task, and env.backend is envpool"),
        ("PushCube-v1", EnvConfig(processes=True), "env.processes is for Gymnasium only"),
    ],
)
def test_backends_that_do_not_fit_are_refused(task: str, env: EnvConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_backend(task, env)


def test_the_backend_of_a_maniskill_task_goes_with_the_device() -> None:
    assert choose_backend("PushCube-v1", EnvConfig(), "cuda:0") == "physx_cuda"
    assert choose_backend("PushCube-v1", EnvConfig(), "cpu") == "physx_cpu"
    assert choose_backend("PushCube-v1", EnvConfig(backend="physx_cpu"), "cuda") == "physx_cpu"
