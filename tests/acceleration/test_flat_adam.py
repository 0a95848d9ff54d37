from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detent.acceleration.flat_adam import FlatAdam
from detent.algorithms.optimizer import AdamOptimizer
from detent.config import UpdateConfig


def random_losses(module: nn.Module, steps: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    dtype = next(module.parameters()).dtype
    # Gradients of very different size, so that some are clipped and some are not.
    return [(torch.randn(16, 3, generator=generator, dtype=dtype), 10.0 ** (i % 4 - 2)) for i in range(steps)]


def descend_on(optimizer: FlatAdam, loss: Tensor) -> Tensor:
    optimizer.gradient.zero_()
    torch.autograd.backward(loss)
    return optimizer.step()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_flat_adam_is_adam_on_separate_parameters(
    max_grad_norm: float, weight_decay: float, dtype: torch.dtype, tolerance: float
) -> None:
    config = UpdateConfig(learning_rate=0.01, weight_decay=weight_decay, max_grad_norm=max_grad_norm)
    ours = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)).to(dtype)
    theirs = copy.deepcopy(ours)
    flat = FlatAdam(ours, config)
    adam = torch.optim.Adam(theirs.parameters(), 0.01, eps=config.adam_eps, weight_decay=weight_decay, foreach=False)
    clipped = 0
    for i, (x, scale) in enumerate(random_losses(ours, 12)):
        # The schedule changes the learning rate between updates.
        learning_rate = 0.01 * (1 - i / 20)
        flat.learning_rate = learning_rate
        adam.param_groups[0]["lr"] = learning_rate
        norm = descend_on(flat, scale * (ours(x) - 1).square().mean())
        adam.zero_grad()
        torch.autograd.backward(scale * (theirs(x) - 1).square().mean())
        their_norm = nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm or float("inf"))
        adam.step()
        torch.testing.assert_close(norm, their_norm, rtol=1e-5, atol=0.0)
        clipped += int(their_norm > 0.5)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=tolerance)
    assert 0 < clipped < 12


def test_parameters_are_views_of_the_flat_one() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    before = copy.deepcopy(module.state_dict())
    flat = FlatAdam(module, UpdateConfig())
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert flat.flat.numel() == 3 * 5 + 5 + 5 * 2 + 2
    # A checkpoint loaded into the module reaches the optimizer, and a step reaches the module.
    module.load_state_dict({key: torch.full_like(value, 7.0) for key, value in before.items()})
    assert (flat.flat == 7).all()
    descend_on(flat, module(torch.ones(1, 3)).sum())
    assert all((value != 7).all() for value in module.state_dict().values())


def test_a_restored_optimizer_takes_the_same_steps_to_the_bit() -> None:
    config = UpdateConfig(learning_rate=0.01)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    flat = FlatAdam(module, config)
    assert flat.state()["step"] == 0
    losses = random_losses(module, 8)
    for x, scale in losses[:4]:
        descend_on(flat, scale * module(x).square().mean())
    twin = copy.deepcopy(module)
    twin_flat = FlatAdam(twin, config)
    state = flat.state()
    twin_flat.load_state(state)
    for x, scale in losses[4:]:
        descend_on(flat, scale * module(x).square().mean())
    for x, scale in losses[4:]:
        descend_on(twin_flat, scale * twin(x).square().mean())
    assert torch.equal(flat.flat, twin_flat.flat)
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert state["step"] == 4


@pytest.mark.parametrize("plain_first", [True, False])
def test_its_state_is_that_of_the_plain_optimizer_and_either_goes_on_from_the_others(plain_first: bool) -> None:
    config = UpdateConfig(learning_rate=0.01, weight_decay=0.1)
    modules = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)).double()]
    modules.append(copy.deepcopy(modules[0]))
    plain, flat = AdamOptimizer(list(modules[0].parameters()), config), FlatAdam(modules[1], config)

    def compare() -> None:
        states = [plain.state(), flat.state()]
        assert states[0].keys() == states[1].keys()
        for key, value in states[0].items():
            assert value.dtype == states[1][key].dtype
            torch.testing.assert_close(value, states[1][key], rtol=1e-10, atol=1e-14)
        for one, other in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)

    def descend(losses: list[Any]) -> None:
        for x, scale in losses:
            plain.zero_grad()
            torch.autograd.backward(scale * (modules[0](x) - 1).square().mean())
            norm = plain.step()
            torch.testing.assert_close(
                descend_on(flat, scale * (modules[1](x) - 1).square().mean()), norm, rtol=1e-10, atol=0.0
            )

    compare()
    losses = random_losses(modules[0], 8)
    descend(losses[:4])
    compare()
    if plain_first:
        state = plain.state()
        flat = FlatAdam(modules[1], config)
        flat.load_state(state)
    else:
        state = flat.state()
        plain = AdamOptimizer(list(modules[0].parameters()), config)
        plain.load_state(state)
    compare()
    descend(losses[4:])
    compare()
