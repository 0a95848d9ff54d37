"""What both categorical critics have in common."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detent.config import Config, CriticConfig
from detent.errors import ConfigError
from detent.models.critics import CRITICS, make_critic_head
from detent.models.critics.categorical import CategoricalCritic
from detent.models.policy import Policy
from detent.spec import ActionSpec, EnvSpec, ObservationSpec

both = pytest.mark.parametrize("head", ["hl-gauss", "two-hot"])


def make(head: str, **options: Any) -> CategoricalCritic:
    critic = make_critic_head(CriticConfig(head=head, head_options=options)).double()
    assert isinstance(critic, CategoricalCritic)
    return critic


@both
def test_the_value_is_the_expected_bin(head: str) -> None:
    critic = make(head, low=-1.0, high=1.0, bins=3)
    bins = np.array([-2 / 3, 0, 2 / 3] if head == "hl-gauss" else [-1, 0, 1])
    # Odds of 1 : 2 : 5.
    outputs = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64).log()
    assert critic.value(outputs).item() == pytest.approx(np.array([1, 2, 5]) @ bins / 8, rel=1e-6)


@both
def test_the_loss_is_the_mean_cross_entropy(head: str) -> None:
    critic = make(head, low=-1.0, high=3.0, bins=9)
    returns = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
    # Of a uniform distribution: log 9, whatever the target.
    assert critic.loss(torch.zeros(3, 9).double(), returns, returns, 0).item() == pytest.approx(math.log(9))
    outputs = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = critic.target(returns).numpy()
    odds = np.exp(outputs.numpy())
    expected = -(target * np.log(odds / odds.sum(-1, keepdims=True))).sum(-1).mean()
    assert critic.loss(outputs, returns, returns, 0).item() == pytest.approx(expected, rel=1e-12)


@both
def test_the_gradient_of_the_loss_is_that_of_finite_differences(head: str) -> None:
    critic = make(head, low=-1.0, high=3.0, bins=9)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    returns = 2 * torch.randn(4, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda out: critic.loss(out, returns, returns, 0), outputs, atol=1e-8)


@both
def test_returns_beyond_the_support_count_as_its_ends_and_are_logged(head: str) -> None:
    critic = make(head, low=-1.0, high=3.0, bins=9)
    inside = torch.tensor([-1.0, 0.0, 3.0, 3.0], dtype=torch.float64)
    beyond = torch.tensor([-7.0, 0.0, 3.001, 1e9], dtype=torch.float64)
    outputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert critic.loss(outputs, inside, inside, 0) == critic.loss(outputs, beyond, beyond, 0)
    assert critic.statistics(outputs, inside)["value_saturation"] == 0
    assert critic.statistics(outputs, beyond)["value_saturation"] == 0.75


@both
@pytest.mark.parametrize("kind", ["mlp", "rn"])
def test_a_new_critic_predicts_zero(head: str, kind: str) -> None:
    spec = EnvSpec(ObservationSpec(4), ActionSpec((-1.0,), (1.0,)))
    policy = Policy(spec, Config(critic=CriticConfig(head=head, kind=kind)))
    observation = {"state": 3 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))}
    torch.testing.assert_close(policy.value(observation), torch.zeros(50), rtol=0, atol=1e-4)
    assert list(policy.critic_head.parameters()) == []


@both
def test_a_checkpoint_keeps_the_support(head: str) -> None:
    trained, new = make(head, low=-3.0, high=2.0, bins=21), make(head, low=-9.0, high=9.0, bins=21)
    new.load_state_dict(trained.state_dict())
    outputs = torch.randn(5, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(new.value(outputs), trained.value(outputs))


@both
def test_regression_on_noisy_returns_finds_their_mean(head: str) -> None:
    critic = make_critic_head(CriticConfig(head=head))
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, critic.num_outputs))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)

    def mean(states: torch.Tensor) -> torch.Tensor:
        return 2 * states[:, 0].sin() + states[:, 1]

    for step in range(1000):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 1000)
        states = torch.randn(256, 2, generator=generator)
        # Exponential noise: skewed, so that a mode or a median would be off by 0.3 and more.
        noise = torch.empty(256).exponential_(generator=generator) - 1
        returns = mean(states) + noise
        optimizer.zero_grad()
        torch.autograd.backward(critic.loss(network(states), returns, returns, 0))
        optimizer.step()
    states = torch.randn(2000, 2, generator=generator)
    error = (critic.value(network(states)) - mean(states)).detach()
    assert error.square().mean() < 0.02 * mean(states).var()
    assert abs(error.mean()) < 0.05


WRONG = [
    ({"low": 1.0, "high": 1.0}, "has low 1.0 and high 1.0; the support goes from a finite low to a higher high"),
    ({"low": 5.0, "high": -5.0}, "has low 5.0 and high -5.0"),
    ({"high": math.inf}, "has low -100.0 and high inf"),
    ({"low": math.nan}, "has low nan and high 100.0"),
    ({"bins": 1}, "critic.head_options.bins is 1; a categorical critic needs at least 2 bins"),
    ({"bins": 10.5}, "critic.head_options.bins is 10.5; it must be int"),
    ({"width": 3}, "unknown setting 'critic.head_options.width'"),
]


@both
@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_supports_are_refused(head: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        CRITICS.options(head, options, "critic.head_options")
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_wrong_smoothing_is_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match=r"critic.head_options.sigma is .*; it must be positive and finite"):
        CRITICS.options("hl-gauss", {"sigma": sigma}, "critic.head_options")
