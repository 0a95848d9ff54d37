"""The paper's proposition on the variance of policy gradients, tested on Detent's own heads in float64.

A categorical policy's E|g|^2 is bounded by m R^2 (1 - 1/K); a Gaussian's grows without bound as it gets sharper. The
update's gradient is that of a weighted cross-entropy for a categorical policy and of a weighted squared error for a
Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, mse_loss

from detent.errors import ConfigError
from detent.paper.gradient_moments import categorical_actor, exact_second_moment, gaussian_actor, sampled_second_moment
from detent.report.style import COLORS
from detent.seeding import derive_seed

Relation: TypeAlias = Literal["=", "<", ">"]
STANDARD_ERRORS = 4.0
"""Tolerance of a Monte Carlo mean, in standard errors."""
ROUNDING = 1e-12
"""Tolerance for float64 rounding, relative to the expected value unless that is 0."""


@dataclass(frozen=True)
class Check:
    """One claim and its result."""

    name: str
    relation: Relation
    """Relation that `measured` must have to `expected`."""
    expected: float
    measured: float
    standard_error: float
    """Standard error of a Monte Carlo mean; 0 if `measured` is exact up to rounding."""
    ok: bool


def check_all(
    dimensions: int = 6, bins: int = 41, samples: int = 100_000, seed: int = 1, total_return: float = 2.0
) -> list[Check]:
    """Check the claims of the proposition and of the view of the update as supervised learning."""
    _require_at_least(dimensions=(dimensions, 1), bins=(bins, 2), samples=(samples, 100))
    if not math.isfinite(total_return) or total_return == 0:
        raise ConfigError(f"total return is {total_return}; it must be a finite number other than 0")
    generator = torch.Generator().manual_seed(derive_seed(seed, "proposition"))
    return [
        *_check_second_moments(dimensions, bins, total_return, samples, generator),
        *_check_bound_and_gap(dimensions, bins, total_return, generator),
        *_check_losses(dimensions, bins, generator),
    ]


def _check_second_moments(
    dimensions: int, bins: int, total_return: float, samples: int, generator: Generator
) -> list[Check]:
    """Compare Monte Carlo estimates with the closed forms, for policies from wide to sharp."""
    categorical = {
        "uniform": torch.zeros(dimensions, bins, dtype=torch.float64),
        "moderately sharp": _bells(_geometric(1.0, 4.0, dimensions), bins),
        "very sharp": _bells(_geometric(0.4, 0.5, dimensions), bins),
    }
    gaussian = {"1": (1.0, 1.0), "0.5": (0.5, 0.5), "0.1": (0.1, 0.1), "0.1 to 1": (0.1, 1.0)}
    cases = {f"categorical, {name}": categorical_actor(logits, total_return) for name, logits in categorical.items()}
    for name, (low, high) in gaussian.items():
        cases[f"Gaussian, sigma {name}"] = gaussian_actor(_geometric(low, high, dimensions), total_return)
    checks = []
    for name, actor in cases.items():
        measured = sampled_second_moment(actor, samples, generator)
        # Not the sample's own deviation, which is 0 if the sample missed all the rare bins of a sharp policy.
        standard_error = math.sqrt(exact_second_moment(actor)[1].sum().item() / samples)
        checks.append(_check(f"E|g|^2, {name}", "=", actor.second_moment, measured, standard_error))
    return checks


def _check_bound_and_gap(dimensions: int, bins: int, total_return: float, generator: Generator) -> list[Check]:
    """Check that only uniform policies attain the bound, R^2 / K per dimension below a Gaussian with sigma 1."""

    def exact(logits: Tensor) -> Tensor:
        return exact_second_moment(categorical_actor(logits, total_return))[0]

    def gap(logits: Tensor) -> Tensor:
        sigma = torch.ones(len(logits), dtype=torch.float64)
        return exact_second_moment(gaussian_actor(sigma, total_return))[0] - exact(logits)

    bound, least = dimensions * total_return**2 * (1 - 1 / bins), total_return**2 / bins
    uniform = torch.zeros(dimensions, bins, dtype=torch.float64)
    nudged = uniform.clone()
    nudged[0, 0] = 0.1
    others = [scale * _normal(dimensions, bins, generator) for scale in _geometric(0.1, 10.0, 20)]
    largest = max(exact(logits).sum().item() for logits in others)
    smallest = min(gap(logits).min().item() for logits in others)
    checks = [
        _check("bound m R^2 (1 - 1/K), uniform", "=", bound, exact(uniform).sum().item()),
        _check("bound, uniform but for one logit, 0.1 higher", "<", bound, exact(nudged).sum().item()),
        _check("bound, largest of 20 other policies", "<", bound, largest),
        _check("gap per dimension at sigma 1, uniform", "=", least, gap(uniform).mean().item()),
        _check("gap per dimension at sigma 1, smallest of 20 other policies", ">", least, smallest),
    ]
    logits = 2 * _normal(1, bins, generator)
    expected = total_return**2 - categorical_actor(logits, total_return).second_moment
    for size in (1, 2, 4, 8, 16):
        measured = gap(logits.expand(size, -1)).sum().item() / size
        checks.append(_check(f"gap / m at sigma 1, m = {size}", "=", expected, measured))
    return checks


def _check_losses(dimensions: int, bins: int, generator: Generator) -> list[Check]:
    """Check that -mean(ratio A) has the gradient of supervised learning with the weights ratio A, held constant."""
    sigma = _geometric(0.1, 1.0, dimensions)

    def cross_entropies(logits: Tensor, choice: Tensor) -> Tensor:
        return cross_entropy(logits.unflatten(-1, (dimensions, bins)).mT, choice.long(), reduction="none")

    def squared_errors(mean: Tensor, choice: Tensor) -> Tensor:
        return mse_loss(mean, choice, reduction="none") / (2 * sigma.square())

    checks = []
    for name, actor, losses in (
        ("cross-entropy", categorical_actor(torch.zeros(dimensions, bins, dtype=torch.float64)), cross_entropies),
        ("squared error", gaussian_actor(sigma), squared_errors),
    ):
        outputs, step = (_normal(256, len(actor.outputs), generator) for _ in range(2))
        old = actor.head(outputs + 0.1 / math.sqrt(dimensions) * step)
        choice = actor.head.sample(old, generator)
        new = actor.head(outputs.requires_grad_())
        ratio = (actor.head.log_prob(new, choice) - actor.head.log_prob(old, choice)).sum(-1).exp()
        weights = ratio * _normal(1, 256, generator)
        (update,) = torch.autograd.grad(-weights.mean(), outputs, retain_graph=True)
        supervised = weights.detach() * losses(outputs, choice).sum(-1)
        error = (update - torch.autograd.grad(supervised.mean(), outputs)[0]).abs().max().item()
        checks.append(_check(f"update's gradient - weighted {name}'s", "=", 0.0, error))
    return checks


def draw(path: Path, bins: int = 41, samples: int = 100_000, seed: int = 1) -> None:
    """Plot E|g|^2 of one dimension with R = 1 against the policy's sharpness: closed forms, and dots by Monte Carlo.

    Actions are in [-1, 1]; the categorical policy is a bell around the middle bin that widens until it is uniform.
    """
    _require_at_least(bins=(bins, 2), samples=(samples, 100))
    generator = torch.Generator().manual_seed(derive_seed(seed, "proposition", "picture"))
    logits = _bells(_geometric(0.3, 20.0 * bins, 401), bins)
    actions, p = torch.linspace(-1, 1, bins, dtype=torch.float64), logits.softmax(-1)
    spread = ((p * actions.square()).sum(-1) - (p * actions).sum(-1).square()).sqrt()
    sigma = _geometric(spread[0].item(), 1.0, 12)
    gaussians = [gaussian_actor(one) for one in sigma[:, None]]
    bells = [categorical_actor(one) for one in logits[:, None]]
    near = torch.searchsorted(spread, sigma).clamp(max=len(spread) - 1).unique().tolist()
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for label, color, marker, deviations, actors, dots in (
        ("Gaussian, gradient in the mean: 1 / σ²", COLORS["mlp-c"], "s", sigma, gaussians, range(len(sigma))),
        (f"categorical, K = {bins}, gradient in the logits: 1 - |p|²", COLORS["rn-d"], "o", spread, bells, near),
    ):
        axes.plot(deviations / 2, [actor.second_moment for actor in actors], color=color, label=label)
        sampled = [sampled_second_moment(actors[dot], samples, generator) for dot in dots]
        axes.plot([deviations[dot].item() / 2 for dot in dots], sampled, marker, color=color)
    axes.axhline(1 - 1 / bins, linestyle="--", color="black", linewidth=1, label="bound of the categorical: 1 - 1/K")
    axes.set(xscale="log", yscale="log", title=f"lines: closed forms; dots: {samples:,} samples each")
    axes.set_xlabel("standard deviation of the action / action range (sharper policies on the left)")
    axes.set_ylabel("E|∇ log π|², one action dimension")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _check(name: str, relation: Relation, expected: float, measured: float, standard_error: float = 0.0) -> Check:
    slack = STANDARD_ERRORS * standard_error + ROUNDING * (abs(expected) or 1.0)
    excess = measured - expected
    ok = {"=": abs(excess) <= slack, "<": excess < -slack, ">": excess > slack}[relation]
    return Check(name, relation, expected, measured, standard_error, ok)


def _require_at_least(**arguments: tuple[int, int]) -> None:
    for name, (value, least) in arguments.items():
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")


def _bells(widths: Tensor, bins: int) -> Tensor:
    """Return logits `[n, K]` of normal distributions around the middle bin, for standard deviations `[n]` in bins."""
    distance = torch.arange(bins, dtype=torch.float64) - bins // 2
    return -0.5 * (distance / widths[:, None]).square()


def _normal(rows: int, columns: int, generator: Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def _geometric(low: float, high: float, size: int) -> Tensor:
    return torch.logspace(math.log10(low), math.log10(high), size, dtype=torch.float64)
