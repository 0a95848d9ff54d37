"""Stable-Baselines3's policies are those of Detent."""

from __future__ import annotations

import pytest
import torch

from detent.bench.cases import peer_missing
from detent.bench.peers import make_model
from detent.config import Config
from detent.config.presets import configure
from detent.envs import env_spec
from detent.models.policy import Policy

SMALL = {"env.num_envs": 2, "rollout_steps": 8, "update.minibatches": 2, "update.epochs": 1}


def config_of(variant: str) -> Config:
    return configure("Hopper-v4", variant=variant, overrides=SMALL)


@pytest.mark.parametrize("variant", ["rn-d", "rn-c", "mlp-d", "mlp-c", "plain-d"])
def test_the_peers_policy_with_our_weights_says_what_ours_says(variant: str) -> None:
    config = config_of(variant)
    ours = Policy(env_spec(config.task, config.env), config)
    torch.manual_seed(0)
    for parameter in ours.parameters():
        parameter.data = torch.randn_like(parameter) / 10
    theirs = make_model(config).policy
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())
    # Both register actor and critic trunk, then the last layers; in each the layers come in the same order.
    theirs.mlp_extractor.policy_net.load_state_dict(renamed(ours.actor[0], theirs.mlp_extractor.policy_net))
    theirs.mlp_extractor.value_net.load_state_dict(renamed(ours.critic[0], theirs.mlp_extractor.value_net))
    theirs.action_net.load_state_dict(ours.actor[1].state_dict())
    theirs.value_net.load_state_dict(ours.critic[1].state_dict())
    if config.head.kind == "gaussian":
        theirs.log_std.data = next(iter(ours.head.parameters())).data.clone()
    state = {"state": torch.randn(5, 11)}
    choice, log_prob, _ = ours.act(state)
    values, their_log_prob, _ = theirs.evaluate_actions(state["state"], choice)
    torch.testing.assert_close(their_log_prob, log_prob.sum(-1))
    torch.testing.assert_close(values.squeeze(-1), ours.value(state))


def renamed(ours: torch.nn.Module, theirs: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Our tensors under their names."""
    return dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True))


def test_a_bin_is_the_same_action_for_both() -> None:
    config = config_of("rn-d")
    head = Policy(env_spec(config.task, config.env), config).head
    model = make_model(config)
    assert model.env is not None
    choice = torch.tensor([0, 20, 40])
    assert model.env.env_method("action", choice.numpy())[0] == pytest.approx(head.to_action(choice[None])[0].numpy())


def test_the_peer_has_our_hyper_parameters() -> None:
    model = make_model(config_of("rn-d"))
    group = model.policy.optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (3e-4, 1e-5, 1e-5)
    assert (model.n_steps, model.batch_size, model.n_epochs, model.max_grad_norm) == (8, 8, 1, 0.5)
    # The library's value loss is not halved.
    assert (model.gamma, model.gae_lambda, model.vf_coef, model.ent_coef) == (0.99, 0.95, 0.25, 0.0)


def test_a_head_without_a_peer_is_said_so() -> None:
    assert peer_missing(config_of("mlp-c")) is None
    assert "no such action distribution" in str(peer_missing(config_of("loss-swap")))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.bench.cases.find_spec", lambda name: None)
    assert "pip install stable-baselines3" in str(peer_missing(config_of("rn-d")))
