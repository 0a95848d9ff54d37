from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from detent.acceleration.update import AcceleratedMinibatchUpdate
from detent.algorithms.minibatch import MinibatchUpdate
from detent.algorithms.ppo import PPOLoss
from detent.config import (
    ActorConfig,
    Config,
    CriticConfig,
    EnvConfig,
    HeadConfig,
    NormalizeConfig,
    PPOConfig,
    UpdateConfig,
)
from detent.config.presets import configure
from detent.envs import Step, VectorEnv, make_envs
from detent.envs.gymnasium import GymnasiumEnvs
from detent.models.policy import Policy
from detent.rollouts.advantages import gae
from detent.rollouts.batch import Batch
from detent.rollouts.rollout import NonFiniteError, Rollout, allocate, checksum, collect, require_finite
from detent.spec import ActionSpec, EnvSpec, Observation, ObservationSpec

SCRIPTED = "detent.envs.scripted:Scripted-v0"
TARGET = "detent.envs.scripted:Target-v0"
Engine = type[MinibatchUpdate] | type[AcceleratedMinibatchUpdate]
every_engine = pytest.mark.parametrize(
    "engine", [MinibatchUpdate, AcceleratedMinibatchUpdate], ids=["autograd", "accelerated"]
)
VARIANTS = ("rn-d", "rn-c", "mlp-d", "mlp-c")


def decided(policy: Policy) -> Policy:
    """The policy with a last layer 100 times larger, so that its distributions are far from uniform."""
    layer = policy.actor[1]
    assert isinstance(layer, nn.Linear)
    layer.weight.data *= 100
    return policy


def gather(policy: Policy, envs: VectorEnv, steps: int, seed: int = 0) -> Rollout:
    first = envs.reset(seed)
    rollout = allocate(policy, first, steps)
    collect(policy, envs, first, rollout, torch.Generator().manual_seed(seed))
    return rollout


def test_allocating_draws_nothing_from_torchs_global_numbers() -> None:
    """They may be a simulator's, and allocation happens again when a run is resumed."""
    policy = Policy(EnvSpec(ObservationSpec(2), ActionSpec((-1.0,), (1.0,))), Config())
    before = torch.get_rng_state()
    allocate(policy, {"state": torch.zeros(3, 2)}, 4)
    assert torch.equal(torch.get_rng_state(), before)


def log_ratios(engine: Engine, policy: Policy, rollout: Rollout, size: int = 7) -> Tensor:
    """Log-ratios as the update computes them, in minibatches of another size than those that acted."""
    normalized = {key: value.flatten(end_dim=1) for key, value in policy.normalize(rollout.observation).items()}
    flat = Batch(
        normalized,
        rollout.choice.flatten(end_dim=1),
        rollout.log_prob.flatten(end_dim=1),
        rollout.value.flatten(),
        torch.zeros_like(rollout.value.flatten()),
        torch.zeros_like(rollout.value.flatten()),
    )
    rule = engine(policy, PPOLoss(PPOConfig()), UpdateConfig())
    order = torch.randperm(len(flat.value), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        pieces = [rule.compute_gradients(rows, 1.0)["log_ratio"].sum(-1) for rows in flat.minibatches(order, size)]
    return torch.cat(pieces)


@every_engine
@pytest.mark.parametrize("task", [TARGET, "Hopper-v4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_ratio_is_1_before_the_first_step(
    variant: str, task: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    envs = make_envs(task, EnvConfig(), 3, 1)
    # A small deviation of Gaussians makes the most of any difference between acting and updating.
    settings = {"actor.width": 64} | ({"head.log_std_init": -1.0} if variant.endswith("-c") else {})
    policy = decided(Policy(envs.spec, configure(task, variant=variant, overrides=settings)))
    policy.update_statistics({"state": 2 * torch.randn(64, envs.spec.observation.size) + 1})
    largest = {}
    for dtype in (torch.float32, torch.float64):
        rollout = gather(policy.to(dtype), envs, 14)
        assert rollout.log_prob.dtype == dtype
        assert rollout.log_prob.std() > 0.1
        ratios = log_ratios(engine, policy, rollout)
        assert len(ratios) == 14 * 3
        largest[dtype] = ratios.abs().max().item()
    envs.close()
    assert largest[torch.float32] < 1e-5
    assert largest[torch.float64] < 1e-12


@every_engine
def test_a_changed_policy_has_another_ratio(engine: Engine) -> None:
    # What the test above would miss if both sides came from the same place.
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = decided(Policy(envs.spec, configure(TARGET, overrides={"actor.width": 16})))
    rollout = gather(policy, envs, 14)
    decided(policy)
    assert log_ratios(engine, policy, rollout).abs().max() > 0.1


def scripted_policy(envs: VectorEnv) -> Policy:
    """Any actor, and a critic that says 10 * episode + step."""
    config = Config(
        actor=ActorConfig(kind="mlp", width=4, depth=1),
        critic=CriticConfig(depth=0),
        head=HeadConfig(bins=3),
        normalize=NormalizeConfig(observation=False),
    )
    policy = Policy(envs.spec, config)
    layer = policy.critic[1]
    assert isinstance(layer, nn.Linear)
    layer.weight.data = torch.tensor([[10.0, 1.0]])
    return policy


def seed_that_begins_with(starts: tuple[int, ...]) -> int:
    return next(
        seed for seed in range(1000) if tuple(np.random.SeedSequence(seed).generate_state(len(starts)) % 3) == starts
    )


# One round of the scripted environment with V = 10 * episode + step, gamma = lambda = 1/2:
#   observation  V   reward  V(next)            delta                  advantage = delta + next advantage / 4
#   (0, 0)       0      1     1                 1 + 1/2 - 0    = 1.5   1.5 + 2.25/4 = 2.0625
#   (0, 1)       1      2     2                 2 + 2/2 - 1    = 2     2 + 1/4      = 2.25
#   (0, 2)       2      3     - terminated      3 - 2          = 1     1
#   (1, 0)      10     10    11                 10 + 11/2 - 10 = 5.5   5.5 + 15/4   = 9.25
#   (1, 1)      11     20    12 truncated       20 + 12/2 - 11 = 15    15
#   (2, 0)      20    100     - both at once    100 - 20       = 80    80
OBSERVATIONS = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0]]
DELTAS = [1.5, 2.0, 1.0, 5.5, 15.0, 80.0]
ADVANTAGES = [2.0625, 2.25, 1.0, 9.25, 15.0, 80.0]
# V(final observation): (0, 3), (1, 2), (2, 1).
FINAL_VALUES = [0.0, 0.0, 3.0, 0.0, 12.0, 21.0]
# Where in the round an environment is that begins with episode 0, 1, 2.
OFFSETS = [0, 3, 5]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_autoreset_mode_gives_the_advantages_written_by_hand(mode: AutoresetMode) -> None:
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig(), mode)
    rollout = gather(scripted_policy(envs), envs, 7, seed_that_begins_with((0, 1, 2)))
    envs.close()
    place = [[(offset + t) % 6 for offset in OFFSETS] for t in range(7)]
    assert rollout.observation["state"].tolist() == [[OBSERVATIONS[p] for p in row] for row in place]
    assert rollout.final_value.tolist() == [[FINAL_VALUES[p] for p in row] for row in place]
    # Next come (0, 1), (1, 1) and (0, 0).
    assert rollout.last_value.tolist() == [1.0, 11.0, 0.0]
    advantages = gae(
        rollout.reward, rollout.value, rollout.last_value, rollout.final_value, rollout.terminated, rollout.truncated,
        0.5, 0.5,
    )  # fmt: skip
    expected = [[ADVANTAGES[p] for p in row] for row in place]
    # The rollout cuts environments 0 and 1 off in the middle of an episode.
    expected[6] = [DELTAS[p] for p in place[6]]
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)
    assert [(episode.env, episode.total_reward) for episode in rollout.episodes] == [
        (2, 100.0),
        (1, 30.0),
        (0, 6.0),
        (1, 100.0),
        (2, 6.0),
        (0, 30.0),
        (0, 100.0),
        (1, 6.0),
        (2, 30.0),
        (2, 100.0),
    ]


def test_a_rollout_holds_what_happened() -> None:
    class Recorder:
        """Passes everything on and keeps it."""

        def __init__(self, envs: VectorEnv) -> None:
            self.envs, self.spec, self.num_envs = envs, envs.spec, envs.num_envs
            self.actions: list[Tensor] = []
            self.steps: list[Step] = []

        def reset(self, seed: int) -> Observation:
            return self.envs.reset(seed)

        def step(self, action: Tensor) -> Step:
            self.actions.append(action)
            self.steps.append(self.envs.step(action))
            return self.steps[-1]

        def close(self) -> None:
            self.envs.close()

    envs = Recorder(make_envs(TARGET, EnvConfig(), 3, 1))
    policy = decided(Policy(envs.spec, configure(TARGET, variant="mlp-c")))
    first = envs.reset(0)
    rollout = allocate(policy, first, 10)
    after = collect(policy, envs, first, rollout, torch.Generator().manual_seed(0))
    shown = [first, *(step.observation for step in envs.steps)]
    for t, (action, step) in enumerate(zip(envs.actions, envs.steps, strict=True)):
        assert torch.equal(rollout.observation["state"][t], shown[t]["state"])
        assert torch.equal(action, policy.head.to_action(rollout.choice[t]))
        assert torch.equal(rollout.reward[t], step.reward)
        assert torch.equal(rollout.truncated[t], step.truncated)
        value = policy.value(policy.normalize(shown[t])).detach()
        torch.testing.assert_close(rollout.value[t], value, rtol=1e-5, atol=1e-6)
    assert torch.equal(after["state"], shown[-1]["state"])
    last_value = policy.value(policy.normalize(after)).detach()
    torch.testing.assert_close(rollout.last_value, last_value, rtol=1e-5, atol=1e-6)
    # Target-v0 is cut off after 8 steps, in all environments at once.
    final = envs.steps[7].final_observation
    assert final is not None
    expected = policy.value(policy.normalize(final)).detach()
    torch.testing.assert_close(rollout.final_value[7], expected, rtol=1e-5, atol=1e-6)
    assert rollout.ended.any(dim=1).tolist() == [False] * 7 + [True] + [False] * 2
    assert (rollout.final_value[~rollout.ended] == 0).all()
    assert set(rollout.seconds) == {"act", "simulate"}
    envs.close()


def test_buffers_filled_again_keep_nothing_of_the_rollout_before() -> None:
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig())
    policy = scripted_policy(envs)
    observation = envs.reset(seed_that_begins_with((0, 1, 2)))
    used = allocate(policy, observation, 4)
    observation = collect(policy, envs, observation, used, torch.Generator().manual_seed(0))
    observation = collect(policy, envs, observation, used, torch.Generator().manual_seed(1))

    observation = envs.reset(seed_that_begins_with((0, 1, 2)))
    observation = collect(policy, envs, observation, allocate(policy, observation, 4), torch.Generator().manual_seed(0))
    fresh = allocate(policy, observation, 4)
    collect(policy, envs, observation, fresh, torch.Generator().manual_seed(1))
    for field in dataclasses.fields(Rollout):
        one, other = getattr(used, field.name), getattr(fresh, field.name)
        if isinstance(one, Tensor):
            assert torch.equal(one, other), field.name
    assert torch.equal(used.observation["state"], fresh.observation["state"])
    assert used.episodes == fresh.episodes


def test_collecting_changes_neither_weights_nor_statistics() -> None:
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = Policy(envs.spec, configure(TARGET, overrides={"actor.width": 16}))
    before = copy.deepcopy(policy.state_dict())
    gather(policy, envs, 20)
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())


def test_the_generator_decides_what_is_collected() -> None:
    envs = make_envs(TARGET, EnvConfig(), 3, 1)
    policy = Policy(envs.spec, configure(TARGET, overrides={"actor.width": 16}))

    def choices(seed: int) -> Tensor:
        first = envs.reset(0)
        rollout = allocate(policy, first, 5)
        collect(policy, envs, first, rollout, torch.Generator().manual_seed(seed))
        return rollout.choice

    assert torch.equal(choices(1), choices(1))
    assert not torch.equal(choices(1), choices(2))


def test_bin_choices_are_stored_as_small_integers() -> None:
    envs = make_envs(TARGET, EnvConfig(), 2, 1)
    for bins, dtype in ((41, torch.uint8), (300, torch.int16)):
        policy = Policy(envs.spec, configure(TARGET, overrides={"head.bins": bins, "actor.width": 8}))
        rollout = gather(policy, envs, 5)
        assert rollout.choice.dtype == dtype
        assert rollout.choice.long().max() < bins


def judge(rollout: Rollout) -> None:
    """As the trainer does, once the checksum has been read."""
    require_finite(rollout, False, checksum(rollout, False).item())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["observation 'state'", "reward"])
def test_a_number_that_is_not_finite_is_located(where: str, bad: float) -> None:
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig())
    rollout = gather(scripted_policy(envs), envs, 4)
    judge(rollout)
    if where == "reward":
        rollout.reward[2, 1] = bad
    else:
        rollout.observation["state"][2, 1, 1] = bad
    with pytest.raises(NonFiniteError, match=f"^environment 1 gave a non-finite {where} at step 2 of the rollout$"):
        judge(rollout)


def test_large_finite_numbers_are_no_error() -> None:
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig())
    rollout = gather(scripted_policy(envs), envs, 4)
    rollout.reward.fill_(3e38)
    # Finite each, but float32 ends at 3.4e38.
    assert checksum(rollout, False) == torch.inf
    judge(rollout)
    rollout.reward[3, 2] = torch.inf
    with pytest.raises(NonFiniteError, match="environment 2 gave a non-finite reward at step 3"):
        judge(rollout)


def test_an_observation_that_no_action_was_chosen_on_is_located_too() -> None:
    envs = GymnasiumEnvs(SCRIPTED, 3, EnvConfig())
    rollout = gather(scripted_policy(envs), envs, 4)
    rollout.last_value[2] = float("nan")
    with pytest.raises(NonFiniteError, match=r"environment 2 gave a non-finite observation .* after the rollout"):
        judge(rollout)
    rollout.last_value[2] = 0.0
    t, env = (int(i) for i in (rollout.truncated & ~rollout.terminated).nonzero()[0])
    rollout.final_value[t, env] = float("nan")
    with pytest.raises(NonFiniteError, match=f"environment {env} gave a non-finite final observation .* at step {t} "):
        judge(rollout)
    # Where an episode terminated the value of what came after is never used.
    rollout.final_value.zero_()
    t, env = (int(i) for i in rollout.terminated.nonzero()[0])
    rollout.final_value[t, env] = float("nan")
    judge(rollout)
