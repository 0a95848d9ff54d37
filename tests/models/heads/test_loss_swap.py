from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from detent.config import HeadConfig
from detent.models.heads import make_head
from detent.models.heads.loss_swap import LossSwapHead
from detent.spec import ActionSpec

LOW, HIGH = (-3.0, 0.0, -0.4), (-1.0, 10.0, 0.4)
BINS = 5


def make() -> LossSwapHead:
    head = make_head(ActionSpec(LOW, HIGH), HeadConfig(kind="loss-swap", bins=BINS, log_std_init=-0.7)).double()
    assert isinstance(head, LossSwapHead)
    return head


def expected_actions(
    outputs: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    probabilities = special.softmax(outputs.reshape(-1, 3, BINS), axis=-1)
    centres = np.stack([np.linspace(low, high, BINS) for low, high in zip(LOW, HIGH, strict=True)])
    means: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = (probabilities * centres).sum(-1)
    return means


def test_it_is_a_gaussian_around_the_expected_action() -> None:
    head = make()
    rng = np.random.default_rng(0)
    outputs, choice = rng.standard_normal((4, 3 * BINS)), rng.standard_normal((4, 3))
    params = head(torch.from_numpy(outputs))
    oracle = stats.norm(expected_actions(outputs), np.exp(-0.7))
    np.testing.assert_allclose(
        head.log_prob(params, torch.from_numpy(choice)).detach(), oracle.logpdf(choice), rtol=1e-6
    )
    np.testing.assert_allclose(head.entropy(params).detach(), oracle.entropy(), rtol=1e-6)
    np.testing.assert_allclose(head.mode(params).detach(), expected_actions(outputs), rtol=1e-6)


def test_equal_logits_aim_at_the_middle_and_certain_ones_at_a_bin() -> None:
    head = make()
    np.testing.assert_allclose(head.mode(head(torch.zeros(1, 3 * BINS).double())).detach()[0], [-2, 5, 0], atol=1e-6)
    logits = torch.full((1, 3, BINS), -100.0).double()
    logits[0, [0, 1, 2], [0, 4, 3]] = 100.0
    # Bins 0, 4 and 3 of 5: -3, 10 and -0.4 + 0.75 x 0.8
    np.testing.assert_allclose(head.mode(head(logits.flatten(1))).detach()[0], [-3, 10, 0.2], atol=1e-6)


def test_gradient_of_the_likelihood_reaches_logits_as_finite_differences_say() -> None:
    head = make()
    rng = np.random.default_rng(1)
    outputs = torch.from_numpy(rng.standard_normal((2, 3 * BINS))).requires_grad_()
    choice = torch.from_numpy(rng.standard_normal((2, 3)))
    assert torch.autograd.gradcheck(lambda logits: head.log_prob(head(logits), choice), (outputs,))


def test_samples_scatter_around_the_mean_and_actions_stay_in_the_box() -> None:
    head = make()
    params = head(torch.zeros(1, 3 * BINS).double()).expand(50_000, -1, -1)
    choice = head.sample(params, torch.Generator().manual_seed(0)).detach()
    np.testing.assert_allclose(choice.mean(0), [-2, 5, 0], atol=4 * np.exp(-0.7) / np.sqrt(50_000))
    np.testing.assert_allclose(choice.std(0), np.exp(-0.7), rtol=0.02)
    action = head.to_action(choice)
    assert (action >= torch.tensor(LOW)).all()
    assert (action <= torch.tensor(HIGH)).all()


def test_bins_and_standard_deviation_are_in_the_checkpoint() -> None:
    assert set(make().state_dict()) == {"bins", "low", "high", "log_std"}
    assert make().log_std.detach().numpy() == pytest.approx(-0.7)
