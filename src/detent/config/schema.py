"""Every setting of a run, as frozen dataclasses; the sentence under a field is its command-line help.

A `Config` is complete by itself: its defaults are the `paper` preset on Gymnasium tasks with the `rn-d` actor.
`detent.config.presets.configure` builds one from a task, a preset and a variant; this module knows none of those names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import tomli_w

from detent.errors import ConfigError

Readout = Literal["sample", "mode", "mean"]
"""How an action is read from its distribution: sampled, the most probable one, or the expected one."""
READOUTS: tuple[Readout, ...] = get_args(Readout)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigError(sentence)


@dataclass(frozen=True)
class EnvConfig:
    num_envs: int = 16
    """Environments stepped in parallel."""
    backend: str = "auto"
    """Simulator: `auto` uses EnvPool if it has the task and Gymnasium otherwise; for ManiSkill tasks, physx_cuda if the
    run has a GPU and physx_cpu otherwise. A plug-in is given by name or import path."""
    obs: Literal["state", "rgb", "rgb+state"] = "state"
    """ManiSkill: what the policy observes: the state vector, camera images, or images plus robot and goal state."""
    partial_resets: bool = True
    """ManiSkill: also end an episode when the task is solved or has failed; evaluation runs to the time limit."""
    processes: bool = False
    """Gymnasium only: run each environment in its own process (for slow environments)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor: --env.kwargs frame_skip=5 healthy_z_range=[0.3,1.0]."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers around each environment, innermost first: --env.wrappers my_package:Wrapper."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a simulator plug-in."""
    action_low: tuple[float, ...] = ()
    """Lower action bounds (one for all dimensions, or one each); required if the action space has none."""
    action_high: tuple[float, ...] = ()
    """Upper action bounds (one for all dimensions, or one each); required if the action space has none."""

    def __post_init__(self) -> None:
        _require(self.num_envs >= 1, f"env.num_envs is {self.num_envs}; at least 1 environment is needed")


@dataclass(frozen=True)
class NetworkConfig:
    kind: str = "rn"
    """Trunk: `rn`, the regularized residual network; `mlp`, a plain multi-layer perceptron; `simba`, `simba-v2` or
    `bronet`, residual networks of other papers; or a plug-in."""
    width: int = 256
    """Hidden width (blocks of rn, simba and simba-v2 widen it four times inside)."""
    depth: int = 2
    """Hidden layers of an mlp, residual blocks of the other networks."""
    activation: Literal["tanh", "relu"] = "tanh"
    """mlp only: activation (the blocks of the other networks always use ReLU, as in their papers)."""
    layer_norm: bool = True
    """rn only: LayerNorm before each block and before the head."""
    residual: bool = True
    """rn only: skip connection around each block."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of simba-v2 (shift, alpha_init, ...; docs/networks.md) or of a trunk plug-in."""

    def __post_init__(self) -> None:
        section = type(self).__name__.removesuffix("Config").lower()
        _require(self.width >= 1, f"{section}.width is {self.width}; it must be at least 1")
        _require(self.depth >= 0, f"{section}.depth is {self.depth}; it must not be negative")


@dataclass(frozen=True)
class ActorConfig(NetworkConfig):
    width: int = 256
    """Hidden width (blocks of rn, simba and simba-v2 widen it four times inside)."""


@dataclass(frozen=True)
class CriticConfig(NetworkConfig):
    kind: str = "mlp"
    width: int = 64
    depth: int = 1
    head: str = "scalar"
    """What the critic predicts and how it is trained: `scalar`, regression on the return; `hl-gauss` or `two-hot`,
    classification over bins; or a plug-in."""
    head_options: dict[str, Any] = field(default_factory=dict)
    """Options of the critic: --critic.head-options low=-20 high=20 bins=81."""


@dataclass(frozen=True)
class EncoderConfig:
    kind: str = "nature"
    """`nature` passes state vectors through and encodes images with DQN's convolutional network; or a plug-in."""
    width: int = 256
    """Images only: number of features of the convolutional network, and of the linear layer for the state if any."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of an encoder plug-in."""

    def __post_init__(self) -> None:
        _require(self.width >= 1, f"encoder.width is {self.width}; it must be at least 1")


@dataclass(frozen=True)
class HeadConfig:
    kind: str = "categorical"
    """Action distribution: `categorical`, a softmax over bins per dimension; `ordinal`, `unimodal`, `smooth`,
    `coarse-fine`, others over bins; `gaussian`, diagonal; `squashed-gaussian`; `beta`; `loss-swap`, the paper's
    Gaussian around the expected action of a softmax over bins; or a plug-in."""
    bins: int = 41
    """Heads over bins: bins per action dimension, from the lower to the upper bound."""
    bins_per_dimension: tuple[int, ...] = ()
    """Heads over bins: in place of `bins`, one number for each action dimension."""
    spacing: Literal["uniform", "mu-law"] = "uniform"
    """Heads over bins: evenly spaced, or closer together towards zero by mu-law companding."""
    mu: float = 10.0
    """mu-law spacing: how much closer; the steps next to zero are about log(1 + mu) / mu of the even ones."""
    mean: Literal["plain", "squashed"] = "plain"
    """gaussian: use the network's mean as is, or squash it into the action range with tanh."""
    log_std: Literal["state-independent", "state-dependent"] = "state-independent"
    """gaussian, squashed-gaussian: one learned log standard deviation per dimension, or one predicted per state."""
    log_std_init: float = 0.0
    """gaussian, loss-swap, squashed-gaussian: initial log standard deviation, in the units of the action (of the
    sample before tanh, if squashed)."""
    log_std_min: float = -10.0
    """gaussian, squashed-gaussian, state-dependent: lower bound of the log standard deviation."""
    log_std_max: float = 10.0
    """gaussian, squashed-gaussian, state-dependent: upper bound of the log standard deviation."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of other heads and plug-ins: --head.options temperature=0.5."""

    def __post_init__(self) -> None:
        for name, bins in (("bins", self.bins), *(("bins_per_dimension", bins) for bins in self.bins_per_dimension)):
            _require(bins >= 2, f"head.{name} is {bins}; a head over bins needs at least 2 bins per dimension")
            _require(bins <= 32767, f"head.{name} is {bins}; at most 32767 bins per dimension are possible")
        _require(0 < self.mu <= 1e6, f"head.mu is {self.mu}; it must be positive and at most 1,000,000")
        low, init, high = self.log_std_min, self.log_std_init, self.log_std_max
        # Between these limits the quotient of two variances, exp(80) at most, is finite in float32.
        for name, value in (("log_std_min", low), ("log_std_max", high)):
            _require(abs(value) <= 20, f"head.{name} is {value}; it must lie in [-20, 20]")
        _require(low < high, f"head.log_std_min is {low}; it must be less than head.log_std_max, which is {high}")
        _require(
            low <= init <= high,
            f"head.log_std_init is {init}; it must lie in [{low:g}, {high:g}], from head.log_std_min to log_std_max",
        )


@dataclass(frozen=True)
class NormalizeConfig:
    observation: bool = True
    """Normalize state observations by running mean and variance shared by all environments."""
    reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    clip: float = 10.0
    """Clip normalized observations and rewards to [-clip, clip]."""
    warmup_steps: int = 64
    """Random-action steps per environment before the first rollout, to initialize the observation statistics."""

    def __post_init__(self) -> None:
        _require(self.clip > 0, f"normalize.clip is {self.clip}; it must be positive")
        _require(self.warmup_steps >= 0, f"normalize.warmup_steps is {self.warmup_steps}; it must not be negative")


@dataclass(frozen=True)
class AdvantageConfig:
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Generalized advantage estimation: weight of longer returns."""
    bootstrap_on_termination: bool = False
    """Bootstrap from the final observation even if the episode terminated, as if it had been truncated. The ManiSkill
    presets do, because solving a task ends the episode and must not forfeit the rewards that staying would bring."""

    def __post_init__(self) -> None:
        _require(0 <= self.gamma <= 1, f"advantage.gamma is {self.gamma}; it must lie in [0, 1]")
        _require(0 <= self.gae_lambda <= 1, f"advantage.gae_lambda is {self.gae_lambda}; it must lie in [0, 1]")


@dataclass(frozen=True)
class UpdateConfig:
    epochs: int = 10
    """Passes over each rollout."""
    minibatches: int = 64
    """Minibatches per epoch; must divide num_envs x rollout_steps."""
    learning_rate: float = 3e-4
    """Initial learning rate of Adam."""
    anneal: bool = True
    """Lower the learning rate linearly to zero over schedule_steps."""
    weight_decay: float = 1e-5
    """Adam's L2 penalty, on all parameters."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 0.5
    """Clip the global gradient norm to this; 0 disables clipping."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    value_clip: float = 0.2
    """Clip the change of a value prediction to this range; 0 disables clipping."""
    target_kl: float = 0.0
    """Stop an update early when the mean KL of an epoch exceeds this; 0 disables the check."""
    diagnostics: bool = True
    """Measure gradient variance, signal-to-noise ratio and KL per action dimension in every update."""
    engine: Literal["auto", "autograd", "accelerated"] = "auto"
    """How gradients are computed: `autograd` works with every module; `accelerated` uses hand-written backward passes,
    a flat Adam and worker processes, and needs a fast form of every module; `auto` uses `accelerated` if it can."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a loss or update-rule plug-in."""
    processes: int = 0
    """Processes that share PPO and SPO minibatches and EnvPool environments; 0: one per thread where it helps."""
    compile: bool = False
    """Fuse small operations of PPO and SPO updates with torch.compile; takes twenty seconds, needs a C++ compiler."""

    def __post_init__(self) -> None:
        _require(self.processes >= 0, f"update.processes is {self.processes}; it must not be negative (0: automatic)")
        for name in ("epochs", "minibatches"):
            _require(getattr(self, name) >= 1, f"update.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("learning_rate", "adam_eps"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"update.{name} is {value}; it must be positive and finite")
        for name in ("weight_decay", "max_grad_norm", "entropy_coef", "value_coef", "value_clip", "target_kl"):
            value = getattr(self, name)
            _require(0 <= value < math.inf, f"update.{name} is {value}; it must be finite and not negative")


@dataclass(frozen=True)
class PPOConfig:
    clip: float = 0.2
    """Clip the probability ratio to [1 - clip, 1 + clip]."""

    def __post_init__(self) -> None:
        _require(self.clip > 0, f"ppo.clip is {self.clip}; it must be positive")


@dataclass(frozen=True)
class SPOConfig:
    epsilon: float = 0.2
    """Deviation from ratio 1 that the penalty allows: the objective is largest at 1 + epsilon sign(A)."""

    def __post_init__(self) -> None:
        _require(0 < self.epsilon < math.inf, f"spo.epsilon is {self.epsilon}; it must be positive and finite")


@dataclass(frozen=True)
class TRPOConfig:
    max_kl: float = 0.01
    """Trust region: upper bound of the mean KL(old || new) over the batch."""
    damping: float = 0.1
    """Added to the diagonal of the Fisher matrix; if `calibrated`, in units of the matrix's mean eigenvalue."""
    calibrated: bool = False
    """Let the step's KL come near max_kl whatever the head: damping then only smooths the step's direction, while the
    Fisher matrix alone sets its length, and the line search shortens it no more than the KL demands."""
    cg_iterations: int = 10
    """Conjugate-gradient iterations per update."""
    max_backtracks: int = 10
    """Step lengths the line search tries, each `backtrack_coef` times the previous one."""
    backtrack_coef: float = 0.8
    """Factor between successive step lengths of the line search."""
    chunk: int = 2048
    """States per pass through the network; the memory of an update grows with this, not with the batch."""

    def __post_init__(self) -> None:
        for name in ("max_kl", "damping"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"trpo.{name} is {value}; it must be positive and finite")
        for name in ("cg_iterations", "max_backtracks", "chunk"):
            _require(getattr(self, name) >= 1, f"trpo.{name} is {getattr(self, name)}; it must be at least 1")
        coef = self.backtrack_coef
        _require(0 < coef < 1, f"trpo.backtrack_coef is {coef}; it must lie between 0 and 1")


@dataclass(frozen=True)
class TD3Config:
    learning_rate: float = 3e-4
    """Learning rate of Adam, for actor and critics."""
    width: int = 256
    """Hidden width of actor and critics, two ReLU layers each."""
    buffer_size: int = 1_000_000
    """Transitions in the replay buffer (each stores two observations)."""
    batch_size: int = 256
    """Transitions per update, with one update per environment step."""
    learning_starts: int = 25_000
    """Environment steps with random actions before the first update."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Weight of the trained networks in each update of the target networks."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on training actions, in units of half the action range."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions, in units of half the action range."""
    target_noise_clip: float = 0.5
    """Clip range of the noise on target actions, in units of half the action range."""
    policy_delay: int = 2
    """Critic updates per actor update."""

    def __post_init__(self) -> None:
        for name in ("width", "buffer_size", "batch_size", "policy_delay"):
            _require(getattr(self, name) >= 1, f"td3.{name} is {getattr(self, name)}; it must be at least 1")
        _require(
            0 < self.learning_rate < math.inf,
            f"td3.learning_rate is {self.learning_rate}; it must be positive and finite",
        )
        for name in ("learning_starts", "exploration_noise", "target_noise", "target_noise_clip"):
            value = getattr(self, name)
            _require(0 <= value < math.inf, f"td3.{name} is {value}; it must be finite and not negative")
        for name in ("gamma", "tau"):
            _require(0 <= getattr(self, name) <= 1, f"td3.{name} is {getattr(self, name)}; it must lie in [0, 1]")


@dataclass(frozen=True)
class EvalConfig:
    interval: int = 0
    """Environment steps between evaluations; 0: steps/20. The end of a run is always evaluated."""
    episodes: int = 10
    """Episodes per evaluation with each readout: sampled, most probable and expected actions."""
    num_envs: int = 10
    """Environments per evaluation; each runs the same number of episodes."""
    rank_by: Readout = "sample"
    """Readout whose success rate and return decide which checkpoint is the best."""
    deploy: Literal["auto", "sample", "mode", "mean"] = "auto"
    """Readout that the best policy remembers when the run ends; `auto` measures mode and mean on fresh episodes."""
    deploy_episodes: int = 100
    """Fresh episodes with each readout for `deploy = auto`."""

    def __post_init__(self) -> None:
        _require(self.interval >= 0, f"eval.interval is {self.interval}; it must not be negative")
        _require(self.episodes >= 1, f"eval.episodes is {self.episodes}; it must be at least 1")
        _require(self.num_envs >= 1, f"eval.num_envs is {self.num_envs}; it must be at least 1")
        count = self.deploy_episodes
        _require(count >= 1, f"eval.deploy_episodes is {count}; it must be at least 1 (--eval.deploy mode needs none)")


@dataclass(frozen=True)
class CheckpointConfig:
    interval: int = 0
    """Environment steps between scheduled checkpoints; 0: the larger of steps/20 and 20 full episodes per environment.
    Environments are rebuilt at each checkpoint, so the interval affects a run's results."""
    keep: int = 3
    """Number of latest checkpoints to keep, in addition to the best."""

    def __post_init__(self) -> None:
        _require(self.interval >= 0, f"checkpoint.interval is {self.interval}; it must not be negative")
        _require(self.keep >= 1, f"checkpoint.keep is {self.keep}; at least the latest one is kept")


@dataclass(frozen=True)
class Config:
    task: str = ""
    """Gymnasium id, `package.module:EnvId-v0` for your own environment, or a ManiSkill id."""
    preset: str = "paper"
    """Hyperparameters to start from: paper, authors or fast."""
    variant: str = "rn-d"
    """Actor: rn-d, rn-c, mlp-d, mlp-c, loss-swap, ...; `detent list variants` shows all."""
    algo: str = "ppo"
    """Update rule: ppo, spo, trpo, a loss or update-rule plug-in, or td3, the off-policy baseline (--variant td3)."""
    scale: Literal["auto", "cpu", "gpu"] = "auto"
    """ManiSkill: `gpu`, the paper's thousands of environments; `cpu`, few with long rollouts; `auto`, by hardware."""
    steps: int = 5_000_000
    """Total environment steps, rounded up to whole iterations."""
    schedule_steps: int = 5_000_000
    """Length of the learning-rate schedule, so that a short run is the beginning of a long one."""
    rollout_steps: int = 1024
    """Rollout length: steps per environment in each iteration."""
    seed: int = 1
    """Seed of all random numbers."""
    threads: int = 0
    """CPU threads for simulation and computation; 0: all cores. Repeating a run exactly needs the same number."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one."""
    init_from: str = ""
    """Run directory whose best policy (weights and observation statistics) this run starts from."""
    tensorboard: bool = False
    """Also write TensorBoard event files; the same as --log tensorboard."""
    log: tuple[str, ...] = ()
    """Loggers in addition to the run directory's own files: tensorboard, wandb, or plug-ins."""
    log_options: dict[str, Any] = field(default_factory=dict)
    """Options of loggers, one table per logger name."""
    callbacks: tuple[str, ...] = ()
    """Callbacks, by name or import path (made without arguments): --callbacks my_package.my_module:Curriculum."""
    plugins: tuple[str, ...] = ()
    """Modules to import first, whose decorators register plug-ins."""
    env: EnvConfig = EnvConfig()
    encoder: EncoderConfig = EncoderConfig()
    actor: ActorConfig = ActorConfig()
    head: HeadConfig = HeadConfig()
    critic: CriticConfig = CriticConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    update: UpdateConfig = UpdateConfig()
    ppo: PPOConfig = PPOConfig()
    spo: SPOConfig = SPOConfig()
    trpo: TRPOConfig = TRPOConfig()
    td3: TD3Config = TD3Config()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def __post_init__(self) -> None:
        _require(self.steps >= 1, f"steps is {self.steps}; it must be at least 1")
        _require(self.schedule_steps >= 1, f"schedule_steps is {self.schedule_steps}; it must be at least 1")
        _require(self.rollout_steps >= 1, f"rollout_steps is {self.rollout_steps}; it must be at least 1")
        _require(self.threads >= 0, f"threads is {self.threads}; it must not be negative (0: all cores)")
        _require(self.seed >= 0, f"seed is {self.seed}; it must not be negative")

    @property
    def batch_size(self) -> int:
        """Return the number of transitions per iteration."""
        return self.env.num_envs * self.rollout_steps

    @property
    def warmup(self) -> int:
        """Return the number of environment steps with random actions before the first iteration."""
        if self.init_from or not self.normalize.observation:
            return 0
        return self.normalize.warmup_steps * self.env.num_envs

    @property
    def iterations(self) -> int:
        return max(1, math.ceil((self.steps - self.warmup) / self.batch_size))

    @property
    def total_steps(self) -> int:
        """Return `steps` rounded up to whole iterations."""
        return self.warmup + self.iterations * self.batch_size

    def iterations_per(self, steps: int) -> int:
        """Convert an interval in environment steps to whole iterations, at least one."""
        return max(1, round(steps / self.batch_size))


_ALGORITHM_DEFAULTS: dict[str, Any] = {
    "ppo": PPOConfig(),
    "spo": SPOConfig(),
    "trpo": TRPOConfig(),
    "td3": TD3Config(),
}


def validate(config: Config) -> None:
    """Check settings against each other; each section checks its own values when constructed."""
    _require(config.task != "", "no task was given; for instance: detent train HalfCheetah-v4")
    _require(
        config.batch_size % config.update.minibatches == 0,
        f"{config.update.minibatches} minibatches do not divide the batch of {config.env.num_envs} environments x "
        f"{config.rollout_steps} steps = {config.batch_size}; choose update.minibatches among its divisors",
    )
    _require(
        not (config.update.normalize_advantages and config.batch_size == config.update.minibatches),
        "minibatches of one transition cannot have their advantages normalized; use fewer update.minibatches",
    )
    _require(
        not config.update.anneal or config.steps <= config.schedule_steps,
        f"steps ({config.steps}) goes past schedule_steps ({config.schedule_steps}), where the learning rate has "
        "come down to zero; give a longer --schedule-steps, or --update.no-anneal",
    )
    for name, default in _ALGORITHM_DEFAULTS.items():
        _require(
            name == config.algo or getattr(config, name) == default,
            f"the algorithm is {config.algo}, which takes no {name}.* settings; found {getattr(config, name)}",
        )
    if config.algo == "trpo":
        for name in ("entropy_coef", "target_kl"):
            _require(
                getattr(config.update, name) == 0,
                f"update.{name} is {getattr(config.update, name)}; TRPO has none, its step is bounded by trpo.max_kl",
            )
    _require(
        not (config.head.kind == "loss-swap" and config.head.log_std == "state-dependent"),
        "head.log_std is state-dependent; the loss-swap head has one standard deviation per action dimension",
    )
    _require(
        not (config.head.kind == "squashed-gaussian" and config.head.mean == "squashed"),
        "head.mean is squashed; the squashed-gaussian head squashes its samples already",
    )
    _require(
        not (config.env.obs == "rgb" and config.normalize.observation),
        "normalize.observation is for state vectors, and with --obs rgb there is none; leave it out, or use rgb+state",
    )
    tables = {
        f"{name}.options": getattr(config, name).options for name in ("env", "encoder", "actor", "head", "critic")
    }
    tables |= {"env.kwargs": config.env.kwargs, "critic.head_options": config.critic.head_options}
    tables |= {"update.options": config.update.options, "log_options": config.log_options}
    for name, table in tables.items():
        try:
            tomli_w.dumps(table)
        except TypeError as error:
            raise ConfigError(
                f"{name} {table} cannot be written to config.toml ({error}); it takes numbers, text, booleans, and "
                "lists and tables of them"
            ) from None
