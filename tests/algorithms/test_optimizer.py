from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from detent.algorithms.optimizer import AdamOptimizer
from detent.config import UpdateConfig


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)).double()


def random_inputs(count: int) -> list[tuple[Tensor, float]]:
    generator = torch.Generator().manual_seed(0)
    # Gradients of very different size, so that some are clipped and some are not.
    return [(torch.randn(16, 3, generator=generator, dtype=torch.float64), 10.0 ** (i % 4 - 2)) for i in range(count)]


def descend_on(optimizer: AdamOptimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    return optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_it_is_torchs_adam_after_clipping_at_the_learning_rate_of_the_schedule(
    max_grad_norm: float, weight_decay: float
) -> None:
    config = UpdateConfig(learning_rate=0.01, weight_decay=weight_decay, max_grad_norm=max_grad_norm)
    ours = make_network()
    theirs = copy.deepcopy(ours)
    optimizer = AdamOptimizer(list(ours.parameters()), config)
    adam = torch.optim.Adam(theirs.parameters(), 0.01, eps=config.adam_eps, weight_decay=weight_decay)
    clipped = 0
    for i, (x, scale) in enumerate(random_inputs(12)):
        optimizer.learning_rate = adam.param_groups[0]["lr"] = 0.01 * (1 - i / 20)
        norm = descend_on(optimizer, scale * (ours(x) - 1).square().mean())
        adam.zero_grad()
        torch.autograd.backward(scale * (theirs(x) - 1).square().mean())
        their_norm = torch.cat([p.grad.flatten() for p in theirs.parameters() if p.grad is not None]).norm()
        if max_grad_norm and their_norm > max_grad_norm:
            for parameter in theirs.parameters():
                assert parameter.grad is not None
                parameter.grad *= max_grad_norm / (their_norm + 1e-6)
        adam.step()
        torch.testing.assert_close(norm, their_norm, rtol=1e-12, atol=0.0)
        clipped += int(their_norm > 0.5)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)
    assert 0 < clipped < 12


def test_a_restored_optimizer_takes_the_same_steps_to_the_bit() -> None:
    config = UpdateConfig(learning_rate=0.01)
    module = make_network()
    optimizer = AdamOptimizer(list(module.parameters()), config)
    losses = random_inputs(8)
    for x, scale in losses[:4]:
        descend_on(optimizer, scale * module(x).square().mean())
    state = optimizer.state()
    assert state["step"] == 4
    kept = {key: value.clone() for key, value in state.items()}
    twin = copy.deepcopy(module)
    restored = AdamOptimizer(list(twin.parameters()), config)
    restored.load_state(state)
    for key, value in restored.state().items():
        assert torch.equal(value, kept[key]), key
    for x, scale in losses[4:]:
        descend_on(optimizer, scale * module(x).square().mean())
        descend_on(restored, scale * twin(x).square().mean())
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)
    for key, value in kept.items():
        assert torch.equal(state[key], value), "what was saved is a copy"


def test_before_the_first_step_the_state_is_zero() -> None:
    state = AdamOptimizer(list(make_network().parameters()), UpdateConfig()).state()
    assert {key: value.shape for key, value in state.items()} == {"step": (), "exp_avg": (42,), "exp_avg_sq": (42,)}
    assert all((value == 0).all() for value in state.values())


def test_frozen_parameters_and_those_that_the_loss_does_not_reach_stay_where_they_are() -> None:
    module = make_network()
    frozen, unreached = module[0], nn.Linear(2, 2).double()
    frozen.requires_grad_(False)
    everything = [*module.parameters(), *unreached.parameters()]
    before = copy.deepcopy(everything)
    optimizer = AdamOptimizer(everything, UpdateConfig(weight_decay=0.0), everything)
    for x, scale in random_inputs(3):
        descend_on(optimizer, scale * module(x).square().mean())
    moved = [not torch.equal(one, other) for one, other in zip(everything, before, strict=True)]
    # Weight and bias of the frozen layer, of LayerNorm, of the last layer, and of the layer beside.
    assert moved == [False, False, True, True, True, True, False, False]
    assert optimizer.state()["exp_avg"].numel() == 42 - 20 + 6


def test_only_watched_gradients_are_looked_at_and_before_they_are_clipped() -> None:
    module = make_network()
    config = UpdateConfig(max_grad_norm=1e-3)
    assert AdamOptimizer(list(module.parameters()), config).gradient_variance() is None
    optimizer = AdamOptimizer(list(module.parameters()), config, list(module[0].parameters()))
    variance = optimizer.gradient_variance()
    assert variance is not None
    norms = []
    for x, _ in random_inputs(3):
        loss = module(x).square().mean()
        gradients = torch.autograd.grad(loss, list(module[0].parameters()), retain_graph=True)
        norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(variance)
    variance.end_epoch()
    assert variance.metrics()["policy_grad_norm"].item() == pytest.approx(sum(norms) / 3, rel=1e-9)
    assert min(norms) > 1e-3
