"""The gradient probe against plain NumPy, against gradients whose law is known, and against a replay by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy import stats
from torch import Generator, Tensor
from torch.distributions import Categorical, Normal

import detent
from detent.analysis.gradient_probe import BLOCKS, STUDENT_T, BlockJackknife, Estimate, probe_run
from detent.envs.scripted import TargetEnv
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.models.checkpoints import load_policy
from detent.models.heads.categorical import CategoricalHead
from detent.models.heads.gaussian import GaussianHead
from detent.models.heads.loss_swap import LossSwapHead
from detent.models.policy import Policy
from detent.seeding import derive_seed

Array = NDArray[np.float64]
ENVS, STEPS, MINIBATCHES, ROLLOUTS, SEED = 4, 24, 4, 5, 3
NAMES = ("grad_variance", "grad_variance_normalized", "grad_snr", "policy_grad_norm")


def measure(gradients: Array) -> dict[str, Estimate]:
    """Gradients `[n, P]`, one after the other."""
    jackknife = BlockJackknife(*gradients.shape)
    for gradient in torch.from_numpy(gradients):
        jackknife.add(gradient)
    return jackknife.estimates()


def plain(gradients: Array) -> Array:
    """The four statistics of gradients `[n, P]` by their definitions."""
    count, mean = len(gradients), gradients.mean(0)
    trace = np.trace(np.cov(gradients.T))
    square = float(mean @ mean)
    return np.array([trace, trace / square, (square - trace / count) / trace, np.sqrt(square)])


def test_the_quantile_is_that_of_student() -> None:
    assert pytest.approx(stats.t.ppf(0.975, BLOCKS - 1), abs=5e-4) == STUDENT_T


def test_estimates_and_intervals_are_those_of_a_plain_jackknife() -> None:
    gradients = np.random.default_rng(0).standard_normal((64, 7)) + 0.3
    found = measure(gradients)
    assert tuple(found) == NAMES
    # Leave out each run of four gradients in turn; the standard error is the root of 15/16 of the squared deviations.
    without = np.array([plain(np.delete(gradients, slice(i, i + 4), axis=0)) for i in range(0, 64, 4)])
    half = 2.131 * np.sqrt(15 / 16 * np.square(without - without.mean(0)).sum(0))
    for i, estimate in enumerate(found.values()):
        value = plain(gradients)[i]
        assert estimate.estimate == pytest.approx(value, rel=1e-9)
        assert estimate.ci95 == pytest.approx((value - half[i], value + half[i]), rel=1e-7)


@pytest.mark.parametrize("count", [16, 17, 31, 50])
def test_a_number_of_gradients_that_blocks_do_not_divide_is_fine(count: int) -> None:
    gradients = np.random.default_rng(0).standard_normal((count, 3)) + 1
    for expected, estimate in zip(plain(gradients), measure(gradients).values(), strict=True):
        assert estimate.estimate == pytest.approx(expected)
        assert estimate.ci95[0] < expected < estimate.ci95[1]


@pytest.mark.parametrize("snr", [0.002, 0.5])
def test_known_variance_and_signal_are_found_and_covered(snr: float) -> None:
    # 64 gradients of 300 numbers with standard deviations 0.1 to 2. The weak signal is far below 1/64, what |mean|^2
    # gains from noise and a bootstrap from drawing gradients twice.
    rng = np.random.default_rng(1)
    deviations = np.linspace(0.1, 2.0, 300)
    trace = np.square(deviations).sum()
    mean = np.sqrt(snr * trace / 300)
    truth = {"grad_variance": trace, "grad_snr": snr}
    trials = [measure(mean + deviations * rng.standard_normal((64, 300))) for _ in range(300)]
    for name, value in truth.items():
        found = np.array([(trial[name].estimate, *trial[name].ci95) for trial in trials])
        estimates, low, high = found.T
        # The ratio of two unbiased estimates is off by a term of relative order Var(trace) / trace^2 = 1e-4.
        standard_error = estimates.std() / np.sqrt(300)
        assert estimates.mean() == pytest.approx(value, abs=4 * standard_error + 1e-3 * value)
        # 95% of 300, give or take 4 standard deviations of 3.8; wider is allowed, narrower is not.
        assert ((low < value) & (value < high)).sum() >= 285 - 15


def log_prob(policy: Policy, state: Tensor, choice: Tensor) -> Tensor:
    """Log-probability `[B]` of choices `[B, m]` in normalized states `[B, n]`, by torch.distributions."""
    outputs: Tensor = policy.actor(state)
    head = policy.head
    law: Any
    if isinstance(head, CategoricalHead):
        law = Categorical(logits=outputs.unflatten(-1, (choice.shape[-1], -1)))
    elif isinstance(head, LossSwapHead):
        shares = outputs.unflatten(-1, head.bins.shape).softmax(-1)
        law = Normal((shares * head.bins).sum(-1), head.log_std.exp())
    else:
        assert isinstance(head, GaussianHead)
        mean, log_std = outputs.chunk(2, dim=-1) if head.log_std is None else (outputs, head.log_std)
        law = Normal(mean, log_std.exp())
    found: Tensor = law.log_prob(choice)
    return found.sum(-1)


def advantages_by_hand(reward: Array, value: Array, final: Array, last: Array) -> Array:
    """Of episodes of 8 steps `[T, N]` that a time limit ends; gamma 0.99, lambda 0.95."""
    advantages = np.zeros_like(reward)
    running = np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        after = last if t + 1 == len(reward) else value[t + 1]
        ends = (t + 1) % 8 == 0
        running = reward[t] + 0.99 * (final[t] if ends else after) - value[t] + (0 if ends else 0.99 * 0.95) * running
        advantages[t] = running
    return advantages


class Replay:
    """The probe of a run once more, with Gymnasium's plain interface and the tensors of the checkpoint."""

    def __init__(self, run: Path) -> None:
        self.policy, saved, self.config = load_policy(run, "latest")
        path = checkpoints.directory(run, saved.step)
        self.kept = {**load_file(path / "policy.safetensors"), **load_file(path / "trainer.safetensors")}
        self.gradients: list[Array] = []
        self.returns: list[float] = []
        for i in range(ROLLOUTS):
            generator = Generator().manual_seed(derive_seed(SEED, "probe", i))
            seeds = np.random.SeedSequence(derive_seed(SEED, "probe", i, "envs")).generate_state(ENVS).tolist()
            state, choice, advantages = self.play(seeds, generator)
            order = torch.randperm(STEPS * ENVS, generator=generator)
            for rows in order.chunk(MINIBATCHES):
                self.gradients.append(self.gradient(state[rows], choice[rows], advantages[rows]))

    def normalize(self, observations: NDArray[np.float32]) -> Tensor:
        centred = torch.from_numpy(observations).double() - self.kept["normalizer.mean"]
        return (centred / (self.kept["normalizer.var"] + 1e-8).sqrt()).clamp(-10, 10).float()

    def value(self, observations: NDArray[np.float32]) -> Array:
        value: Tensor = self.policy.critic(self.normalize(observations))
        return value.squeeze(-1).detach().double().numpy()

    def play(self, seeds: list[int], generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Normalized states `[B, n]`, choices `[B, m]` and advantages `[B]` of one rollout."""
        envs = [TargetEnv() for _ in range(ENVS)]
        now = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
        states, choices = [], []
        reward, value, final = np.zeros((3, STEPS, ENVS))
        for t in range(STEPS):
            choice, _, action = self.policy.act({"state": torch.from_numpy(now)}, generator)
            states.append(self.normalize(now))
            choices.append(choice)
            value[t] = self.value(now)
            steps = [env.step(one) for env, one in zip(envs, action.numpy(), strict=True)]
            now, reward[t] = np.stack([step[0] for step in steps]), [step[1] for step in steps]
            final[t] = self.value(now)
            if (t + 1) % 8 == 0:
                now = np.stack([env.reset()[0] for env in envs])
        self.returns += reward.reshape(-1, 8, ENVS).sum(1).flatten().tolist()
        if self.config.normalize.reward:
            reward = np.clip(reward / np.sqrt(self.kept["reward/moments.var"].item() + 1e-8), -10, 10)
        advantages = advantages_by_hand(reward, value, final, self.value(now))
        return torch.cat(states), torch.cat(choices), torch.from_numpy(advantages.flatten())

    def gradient(self, state: Tensor, choice: Tensor, advantages: Tensor) -> Array:
        """Of the mean of ratio times advantage `[P]`, where the ratio is 1."""
        if self.config.update.normalize_advantages:
            advantages = (advantages - advantages.mean()) / advantages.std()
        log = log_prob(self.policy, state, choice)
        self.policy.zero_grad()
        torch.autograd.backward(((log - log.detach()).exp() * advantages).mean())
        parameters = (*self.policy.head.parameters(), *self.policy.actor.parameters())
        return np.concatenate([p.grad.flatten().double().numpy() for p in parameters if p.grad is not None])


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def train(run: Path, variant: str, overrides: dict[str, Any]) -> None:
    settings = {
        "threads": 1,
        "steps": 2 * ENVS * STEPS,
        "rollout_steps": STEPS,
        "env.num_envs": ENVS,
        "update.minibatches": MINIBATCHES,
        "update.epochs": 2,
        "update.learning_rate": 0.01,
        "actor.width": 8,
        "eval.episodes": 1,
        "eval.interval": 2 * ENVS * STEPS,
        "normalize.warmup_steps": 8,
    }
    config = detent.configure("detent.envs.scripted:Target-v0", variant=variant, overrides=settings | overrides)
    detent.train(config, out=run)


@pytest.mark.parametrize(
    ("variant", "overrides"),
    [
        ("rn-d", {"head.bins": 5}),
        ("mlp-c", {"normalize.reward": False}),
        ("rn-c", {"head.log_std": "state-dependent", "update.normalize_advantages": False}),
        ("loss-swap", {"algo": "trpo", "head.bins": 5}),
    ],
)
def test_a_probe_is_what_a_replay_by_hand_gives(variant: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, variant, overrides)
    before = contents(run)
    report = probe_run(run, rollouts=ROLLOUTS, seed=SEED)
    assert contents(run) == before, "the run is only read"

    replay = Replay(run)
    gradients, returns = np.stack(replay.gradients), replay.returns
    assert (report["rollouts"], report["minibatches"], report["parameters"]) == (ROLLOUTS, *gradients.shape)
    assert report["minibatch_size"] == ENVS * STEPS // MINIBATCHES
    # Gradients are float32 in the probe.
    for name, expected in zip(NAMES, plain(gradients), strict=True):
        low, high = report[name]["ci95"]
        assert report[name]["estimate"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert low < expected < high
    assert report["episodes"] == len(returns) == ROLLOUTS * ENVS * STEPS // 8
    assert report["return"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert ("std" in report) == (variant != "rn-d")

    assert probe_run(run, rollouts=ROLLOUTS, seed=SEED) == report
    assert probe_run(run, rollouts=ROLLOUTS, seed=SEED + 1)["grad_variance"] != report["grad_variance"]


def test_entropy_and_deviation_are_those_of_the_distribution(tmp_path: Path) -> None:
    # A learning rate of next to nothing: log-std stays 0.5 everywhere, entropy is m (log(2 pi e) / 2 + 0.5).
    tiny = {"update.learning_rate": 1e-30, "head.log_std_init": 0.5}
    train(tmp_path / "run", "mlp-c", tiny)
    report = probe_run(tmp_path / "run")
    assert report["std"] == pytest.approx(np.exp(0.5), rel=1e-6)
    assert report["entropy"] == pytest.approx(2 * (0.5 * np.log(2 * np.pi * np.e) + 0.5), rel=1e-6)


def test_too_few_minibatches_for_an_interval_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", "mlp-c", {})
    with pytest.raises(ConfigError, match="--rollouts is 3; with 4 minibatches per rollout it must be at least 4"):
        probe_run(tmp_path / "run", rollouts=3)
