from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.acceleration.worker_group import WorkerGroup
from detent.algorithms.gradient_variance import GradientVariance, signal_to_noise, trace_of_covariance


def random_gradients(seed: int, count: int, size: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) * torch.arange(1, size + 1) + 0.5


def make_spread(like: torch.Tensor) -> GradientVariance:
    return GradientVariance(like, len(like), WorkerGroup(1))


def add_epoch(spread: GradientVariance, gradients: torch.Tensor) -> None:
    for gradient in gradients:
        spread.add(gradient, gradient.dot(gradient))
    spread.end_epoch()


def test_trace_is_that_of_numpys_covariance() -> None:
    gradients = random_gradients(0, 20)
    trace = trace_of_covariance(gradients.square().sum(), gradients.sum(0).square().sum(), 20)
    assert trace.item() == pytest.approx(np.trace(np.cov(gradients.numpy().T)), rel=1e-12)


def test_metrics_are_averages_over_epochs_and_the_authors_over_all_minibatches() -> None:
    epochs = [random_gradients(seed, 12) * (1 + seed) for seed in range(3)]
    spread = make_spread(torch.zeros(7, dtype=torch.float64))
    for gradients in epochs:
        add_epoch(spread, gradients)
    found = {name: value.item() for name, value in spread.metrics().items()}

    arrays = [gradients.numpy() for gradients in epochs]
    traces = [np.var(array, axis=0, ddof=1).sum() for array in arrays]
    mean_squares = [np.square(array.mean(0)).sum() for array in arrays]
    signals = [square - trace / 12 for square, trace in zip(mean_squares, traces, strict=True)]
    everything = np.concatenate(arrays)
    pairs = [(array[i], array[i + 1]) for array in arrays for i in (0, 8)]
    assert found == pytest.approx(
        {
            "policy_grad_norm": np.linalg.norm(everything, axis=1).mean(),
            "grad_variance": np.mean(traces),
            "grad_variance_normalized": np.mean(traces) / np.mean(mean_squares),
            "grad_snr": np.mean([signal / trace for signal, trace in zip(signals, traces, strict=True)]),
            "grad_snr_paper": np.mean([square / trace for square, trace in zip(mean_squares, traces, strict=True)]),
            "grad_snr_local": sum(a @ b for a, b in pairs) / sum(np.square(b - a).sum() / 2 for a, b in pairs),
            "grad_variance_authors": np.var(everything, axis=0, ddof=1).mean(),
        },
        rel=1e-10,
    )


def test_the_signal_is_unbiased_where_there_is_none() -> None:
    # Pure noise: |mean|^2 / trace alone would say 1/n; with the bias removed the average is 0.
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(2000):
        noise = torch.randn(8, 50, generator=generator, dtype=torch.float64)
        trace = trace_of_covariance(noise.square().sum(), noise.sum(0).square().sum(), 8)
        ratios.append(signal_to_noise(trace, noise.mean(0).square().sum(), 8).item())
    assert abs(np.mean(ratios)) < 4 * np.std(ratios) / np.sqrt(2000)
    assert np.std(ratios) / np.sqrt(2000) < 1 / 8 / 20


def test_a_drift_of_the_expected_gradient_is_no_noise_to_the_local_ratio() -> None:
    # The expected gradient turns from (10, 0, ...) to (-10, 0, ...) in an epoch; the noise has a trace of 400.
    generator = torch.Generator().manual_seed(0)
    expected = torch.zeros(64, 400, dtype=torch.float64)
    expected[:, 0] = torch.linspace(10, -10, 64)
    truth = expected[:, 0].square().mean().item() / 400
    spread = make_spread(torch.zeros(400, dtype=torch.float64))
    for _ in range(200):
        add_epoch(spread, expected + torch.randn(64, 400, generator=generator, dtype=torch.float64))
    found = spread.metrics()
    # A product has a standard deviation of 20 and more, over 400: 0.002 for 1600 pairs. Pairs begin with the epoch, and
    # the gradient is a little larger there than at the last of them.
    assert found["grad_snr_local"].item() == pytest.approx(truth, rel=0.15)
    assert abs(found["grad_snr"].item()) < 0.01 < truth / 5, (
        "the mean over the epoch is 0, whatever each minibatch says"
    )


def test_the_local_ratio_is_unbiased_where_there_is_no_signal_and_takes_whole_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = make_spread(torch.zeros(50, dtype=torch.float64))
    for _ in range(500):
        add_epoch(spread, torch.randn(17, 50, generator=generator, dtype=torch.float64))
    # 1000 products with a standard deviation of sqrt(50), over 50.
    assert abs(spread.metrics()["grad_snr_local"].item()) < 4 * np.sqrt(50) / 50 / np.sqrt(1000)
    few = make_spread(torch.zeros(2, dtype=torch.float64))
    add_epoch(few, torch.tensor([[3.0, 0.0], [1.0, 2.0], [100.0, 100.0]], dtype=torch.float64))
    assert few.metrics()["grad_snr_local"].item() == pytest.approx(3 / 4), "(3 * 1 + 0 * 2) over (2^2 + 2^2) / 2"


def test_at_fixed_parameters_neighbours_are_not_compared() -> None:
    spread = GradientVariance(torch.zeros(5), parameters_move=False)
    add_epoch(spread, torch.rand(4, 5))
    assert "grad_snr" in spread.metrics()
    assert "grad_snr_local" not in spread.metrics()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_equal_gradients_have_no_variance_and_give_finite_numbers(value: float) -> None:
    spread = make_spread(torch.zeros(5))
    add_epoch(spread, torch.full((4, 5), value))
    found = spread.metrics()
    assert found["grad_variance"] == 0
    assert all(number.isfinite() for number in found.values())


def test_one_minibatch_has_a_norm_and_no_variance() -> None:
    spread = make_spread(torch.zeros(2))
    add_epoch(spread, torch.tensor([[3.0, 4.0]]))
    assert {name: value.item() for name, value in spread.metrics().items()} == {"policy_grad_norm": 5.0}
