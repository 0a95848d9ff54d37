"""Variance and signal-to-noise ratio of a checkpoint's policy gradient, on fresh rollouts at fixed parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Generator, Tensor

from detent.algorithms.gradient_variance import signal_to_noise, trace_of_covariance
from detent.algorithms.losses import Metrics
from detent.config import Config
from detent.config.io import read_run_config
from detent.envs import VectorEnv, make_envs
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.normalize import RewardScaler
from detent.models.policy import Policy
from detent.rollouts.batch import Batch, normalized_advantages
from detent.rollouts.rollout import Rollout, allocate, checksum, collect, require_finite
from detent.seeding import derive_seed
from detent.training.plugins import require_trust

BLOCKS = 16
STUDENT_T = 2.131
"""97.5% quantile of Student's t with BLOCKS - 1 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95% confidence interval."""

    estimate: float
    ci95: tuple[float, float]


class BlockJackknife:
    """Statistics of `count` gradients `[P]` with confidence intervals, in the memory of BLOCKS gradients.

    The gradients arrive one at a time and are summed in BLOCKS consecutive blocks of (nearly) equal size; leaving out
    one block at a time gives the standard errors. A bootstrap would not work: drawing gradients twice adds trace /
    count to |mean gradient|^2, which exceeds the signal if the signal-to-noise ratio is below 1 / count, and its
    intervals miss the true value. A jackknife draws none twice and errs on the wide side.

    The interval treats blocks as independent. With a multiple of BLOCKS rollouts, each block consists of whole
    rollouts, which are independent, and the interval covers a repetition of everything with other seeds. With fewer,
    several blocks share a rollout: the interval covers the randomness of actions and minibatches, but not all of the
    randomness that the transitions of one rollout share. Policy, critic and normalization statistics are always taken
    as given.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count, self._added = count, 0
        self._sums = torch.zeros(BLOCKS, size, dtype=torch.float64)
        self._squares = torch.zeros(BLOCKS, dtype=torch.float64)
        self._counts = [0] * BLOCKS

    def add(self, gradient: Tensor) -> None:
        block = self._added * BLOCKS // self._count
        gradient = gradient.double().cpu()
        self._sums[block] += gradient
        self._squares[block] += gradient.dot(gradient)
        self._counts[block] += 1
        self._added += 1

    def estimates(self) -> dict[str, Estimate]:
        total, squares = self._sums.sum(0), self._squares.sum()
        whole = gradient_statistics(squares, total, self._count)
        without = torch.stack(
            [
                torch.stack(list(gradient_statistics(squares - square, total - part, self._count - count).values()))
                for square, part, count in zip(self._squares, self._sums, self._counts, strict=True)
            ]
        )
        standard_error = ((BLOCKS - 1) * without.var(0, correction=0)).sqrt()
        found = {}
        for (name, value), error in zip(whole.items(), standard_error, strict=True):
            half = STUDENT_T * error
            found[name] = Estimate(value.item(), ((value - half).item(), (value + half).item()))
        return found


def gradient_statistics(squares: Tensor, total: Tensor, count: int) -> Metrics:
    """Compute statistics from the summed squared norms of `count` gradients and their sum `[P]`.

    |mean gradient|^2 is too large by trace / count on average; only `grad_snr` corrects for that.
    """
    square_of_sum = total.dot(total)
    trace = trace_of_covariance(squares, square_of_sum, count)
    mean_square = square_of_sum / count**2
    return {
        "grad_variance": trace,
        "grad_variance_normalized": trace / mean_square.clamp(min=1e-30),
        "grad_snr": signal_to_noise(trace, mean_square, count),
        "policy_grad_norm": mean_square.sqrt(),
    }


def probe_run(
    run: Path, which: str = "latest", rollouts: int = 4, seed: int = 0, threads: int = 0, trust: bool = False
) -> dict[str, Any]:
    """Measure checkpoint `which` for `detent diagnose`, only reading the run; `threads` 0 uses the run's number."""
    if rollouts < 1:
        raise ConfigError(f"--rollouts is {rollouts}; it must be at least 1")
    if threads < 0:
        raise ConfigError(f"--threads is {threads}; it must not be negative (0: as many as the run had)")
    require_trust(read_run_config(run), run, trust, training=False)
    policy, state, config = checkpoints.load_policy(run, which, trust=trust)
    least = -(-BLOCKS // config.update.minibatches)
    if rollouts < least:
        raise ConfigError(
            f"--rollouts is {rollouts}; with {config.update.minibatches} minibatches per rollout it must be at least "
            f"{least}, for an interval over {BLOCKS} minibatches or more"
        )
    threads = threads or config.threads
    torch.set_num_threads(threads)
    trainer = checkpoints.load_tensors(checkpoints.directory(run, state.step), "trainer")
    scaler = RewardScaler(config.env.num_envs, config.advantage.gamma, config.normalize.clip)
    scaler.load_state_dict(checkpoints.under("reward/", trainer))
    envs = make_envs(config.task, config.env, config.env.num_envs, threads)
    try:
        measured = probe(policy, envs, scaler, config, rollouts, seed)
    finally:
        envs.close()
    about = {"run": str(run), "task": config.task, "variant": config.variant, "algo": config.algo, "step": state.step}
    return about | measured


def probe(
    policy: Policy, envs: VectorEnv, scaler: RewardScaler, config: Config, rollouts: int, seed: int
) -> dict[str, Any]:
    """Collect rollouts and compute the gradient of every minibatch, holding one rollout in memory at a time."""
    size = config.batch_size // config.update.minibatches
    count = rollouts * config.update.minibatches
    jackknife = BlockJackknife(count, policy.num_actor_parameters)
    totals: dict[str, float] = {}
    returns: list[float] = []
    for rollout, generator in fresh_rollouts(policy, envs, config.rollout_steps, rollouts, seed):
        bootstrapping = config.advantage.bootstrap_on_termination
        require_finite(rollout, bootstrapping, checksum(rollout, bootstrapping).item())
        returns += [episode.total_reward for episode in rollout.episodes]
        reward = rollout.reward.to(policy.device)
        if config.normalize.reward:
            reward = scaler.scale(reward)
        batch = Batch.from_rollout(policy, rollout, reward, config.advantage)
        order = torch.randperm(len(batch), generator=generator, device=policy.device)
        for minibatch in batch.minibatches(order, size):
            gradient, metrics = policy_gradient(policy, minibatch, config.update.normalize_advantages)
            jackknife.add(gradient)
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value.item() / count
    return {
        "rollouts": rollouts,
        "minibatches": count,
        "minibatch_size": size,
        "parameters": policy.num_actor_parameters,
        **{name: asdict(estimate) for name, estimate in jackknife.estimates().items()},
        **totals,
        "return": mean(returns) if returns else None,
        "episodes": len(returns),
    }


def fresh_rollouts(
    policy: Policy, envs: VectorEnv, steps: int, count: int, seed: int
) -> Iterator[tuple[Rollout, Generator]]:
    """Yield rollouts that begin with new episodes, each with its own seeds and a generator to shuffle it.

    The rollouts share their buffers, so each must be used before the next.
    """
    rollout: Rollout | None = None
    for i in range(count):
        generator = Generator(policy.device).manual_seed(derive_seed(seed, "probe", i))
        observation = envs.reset(derive_seed(seed, "probe", i, "envs"))
        rollout = rollout or allocate(policy, observation, steps)
        collect(policy, envs, observation, rollout, generator)
        yield rollout, generator


def policy_gradient(policy: Policy, minibatch: Batch, normalize_advantages: bool) -> tuple[Tensor, Metrics]:
    """Return the gradient `[P]` of E[r A] at ratio r = 1 for head and actor, and metrics of the action distribution."""
    advantages = normalized_advantages(minibatch.advantages) if normalize_advantages else minibatch.advantages
    params = policy.params(minibatch.observation)
    # At r = 1, r and log pi have the same gradient.
    surrogate = (policy.head.log_prob(params, minibatch.choice).sum(-1) * advantages).mean()
    parameters = [*policy.head.parameters(), *policy.actor.parameters()]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    found = dict(
        zip(trained, torch.autograd.grad(surrogate, trained, materialize_grads=True, allow_unused=True), strict=True)
    )
    gradients = [found.get(parameter, torch.zeros_like(parameter)) for parameter in parameters]
    entropy = policy.head.entropy(params.detach())
    metrics = {"entropy": entropy.sum(-1).mean(), **policy.head.statistics(entropy)}
    return torch.cat([gradient.flatten() for gradient in gradients]), metrics


def print_probe(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = Table(title=f"{report['task']} · {report['variant']} · step {report['step']:,}", title_justify="left")
    for column in ("policy gradient", "estimate", "95% interval"):
        rows.add_column(column, justify="left" if column == "policy gradient" else "right")
    for name, shown in (
        ("grad_variance", "variance (trace of the covariance)"),
        ("grad_variance_normalized", "variance / |mean|²"),
        ("grad_snr", "signal-to-noise ratio"),
        ("policy_grad_norm", "|mean|"),
    ):
        low, high = report[name]["ci95"]
        rows.add_row(shown, f"{report[name]['estimate']:.4g}", f"[{low:.4g}, {high:.4g}]")
    console = Console()
    console.print(rows)
    console.print(
        f"rollouts {report['rollouts']}, minibatches {report['minibatches']} of {report['minibatch_size']} transitions,"
        f" parameters of the actor {report['parameters']:,}"
    )
    deviation = f", standard deviation {report['std']:.3g}" if "std" in report else ""
    console.print(f"entropy {report['entropy']:.3g}{deviation}")
    if report["return"] is not None:
        console.print(f"mean return {report['return']:.1f}, episodes that ended {report['episodes']}")
