"""Start, resume and end a run: everything around the training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from detent.config import Config, validate
from detent.config.io import save_config
from detent.config.presets import BASELINES, check_names
from detent.envs import FACTORY, EnvFactory, choose_backend, env_spec
from detent.errors import ConfigError
from detent.models.critics import CRITICS
from detent.models.heads import HEADS, make_head
from detent.models.heads.shapes import require_shapes
from detent.models.policy import Policy
from detent.spec import EnvSpec
from detent.threads import usable_cores, warn_if_too_late
from detent.training import checkpoint
from detent.training.callbacks import Callback, OnIteration, Row, Status
from detent.training.dispatch import Callbacks
from detent.training.engine import acceleration, choose_engine
from detent.training.evaluate import Evaluator
from detent.training.loggers import make_callbacks, make_loggers
from detent.training.plugins import register_plugins, require_trust, with_providers
from detent.training.provenance import provenance
from detent.training.readout import choose_readout
from detent.training.run_directory import RunLog, read_rows
from detent.training.signals import StopRequest
from detent.training.trainer import Result, Trainer


class RunTrainer(Protocol):
    """Anything that trains in a run directory: a `Trainer`, or a baseline's trainer."""

    config: Config
    callbacks: Callbacks

    @property
    def step(self) -> int: ...
    def run(self, log: RunLog) -> Result: ...
    def close(self) -> None: ...


def train(
    config: Config,
    *,
    out: Path | str | None = None,
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    on_iteration: Callable[[Row, Policy], bool | None] | None = None,
    trust: bool = False,
) -> Result:
    """Train a new run in a new run directory.

    `env` makes environments that have no id: a callable that returns a Gymnasium environment or a Gymnasium
    `VectorEnv`; `config.task` is then only a label. `callbacks` are called as the run proceeds
    (`callbacks=[detent.progress()]` shows it); `on_iteration` is the short form of a callback: it gets each row of
    metrics and the policy, and stops the run if it returns True. `trust` allows plug-ins named by the run in
    `init_from`.
    """
    if config.init_from:
        # The run may be resumed from another working directory.
        config = dataclasses.replace(config, init_from=str(Path(config.init_from).resolve()))
    value_clip, config = config.update.value_clip, resolve(config, env)
    called = _gather(config, callbacks, on_iteration, resuming=False)
    if config.update.value_clip != value_clip:
        called.message(
            f"update.value_clip is 0, not {value_clip}: the critic '{config.critic.head}' does not clip values"
        )
    trainer = _make_trainer(config, called, env)
    try:
        if config.init_from and isinstance(trainer, Trainer):
            trainer.start_from(Path(config.init_from), trust)
        log = RunLog.create(Path(out) if out else default_directory(config), config)
    except BaseException:
        trainer.close()
        raise
    return _run(trainer, log)


def resume(
    run: Path | str,
    *,
    steps: int | None = None,
    schedule_steps: int | None = None,
    exact: bool = False,
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    on_iteration: Callable[[Row, Policy], bool | None] | None = None,
    trust: bool = False,
) -> Result:
    """Resume a run that was interrupted or stopped, or extend a finished one to `steps`.

    `env` is the callable that made the run's environments, if one did, and `callbacks` are those it had. Import paths
    in the run's files are imported only with `trust`.
    """
    log, config = RunLog.reopen(Path(run))
    try:
        require_trust(config, log.path, trust)
        called = _gather(config, callbacks, on_iteration, resuming=True)
        return _resume(log, config, steps, schedule_steps, exact, env, called, trust)
    finally:
        log.close()


def _resume(
    log: RunLog,
    config: Config,
    steps: int | None,
    schedule_steps: int | None,
    exact: bool,
    env: EnvFactory | None,
    callbacks: Callbacks,
    trust: bool,
) -> Result:
    run = log.path
    extended = dataclasses.replace(
        config, steps=steps or config.steps, schedule_steps=schedule_steps or config.schedule_steps
    )
    validate(extended)
    if extended.iterations < config.iterations:
        raise ConfigError(f"{run} is planned for {config.steps} steps; --steps can extend it, not shorten it")
    if config.algo in BASELINES and log.status == "finished":
        raise ConfigError(f"{run} is finished; a {config.algo} run keeps only its weights and cannot be extended")
    state, damaged = checkpoint.find_resumable(run, exact)
    for sentence in damaged:
        callbacks.message(f"{sentence}; using an earlier one")
    if state and state.iteration >= extended.iterations:
        if log.status == "finished":
            raise ConfigError(f"{run} is finished at step {state.step:,}; --steps extends it")
        return _finish(log, config, callbacks, env)
    require_device(extended.device)
    spec = env_spec(extended.task, extended.env, env)
    require_compilable(extended, spec, extended.device)
    # Runs of version 0.1.0 do not record their engine, which was the accelerated one; others get theirs or an error.
    extended = dataclasses.replace(
        extended, update=dataclasses.replace(extended.update, engine=choose_engine(extended, spec))
    )
    trainer = _make_trainer(extended, callbacks, env)
    try:
        # A baseline has no checkpoint and starts over.
        if isinstance(trainer, Trainer):
            if state:
                trainer.restore(run, state)
            elif config.init_from:
                trainer.start_from(Path(config.init_from), trust)
    except BaseException:
        trainer.close()
        raise
    save_config(extended, run / "config.toml")
    step = state.step if state else 0
    # Checkpoints first: if this is killed in between, the next resume drops the rows that have no checkpoint.
    checkpoint.remove_after(run, step)
    # A run at iteration 0 begins with an evaluation at the very step it starts from.
    log.rewind(step if state and state.iteration else -1)
    log.interrupted(step, exact=state is None or state.kind == "scheduled")
    callbacks.message(f"resuming {run} at step {step:,}")
    return _run(trainer, log)


def _finish(log: RunLog, config: Config, callbacks: Callbacks, env: EnvFactory | None) -> Result:
    """End a run that was killed after its last checkpoint, before its status was written."""
    evaluator = Evaluator(config, env)
    try:
        with StopRequest(callbacks.message) as stop:
            finished = choose_readout(log, config, evaluator, callbacks, stop)
    finally:
        evaluator.close()
    reason = "all steps done" if finished else "stopped on request"
    log.set_status("finished" if finished else "stopped", reason)
    evaluations = read_rows(log.path / "evals.jsonl")
    return Result(log.path, config.total_steps, finished, reason, evaluations[-1] if evaluations else None)


def _gather(
    config: Config,
    callbacks: Sequence[Callback],
    on_iteration: Callable[[Row, Policy], bool | None] | None,
    resuming: bool,
) -> Callbacks:
    """Return the callbacks given in Python and those that the configuration names."""
    if on_iteration and config.algo in BASELINES:
        raise ConfigError(f"a {config.algo} run has no Detent policy to pass to on_iteration; use a callback instead")
    if isinstance(callbacks, Callback):
        raise ConfigError("callbacks takes a list of callbacks: callbacks=[...]")
    short = [OnIteration(on_iteration)] if on_iteration else []
    return Callbacks([*callbacks, *short, *make_callbacks(config)], make_loggers(config, resuming))


def resolve(config: Config, env: EnvFactory | None = None) -> Config:
    """Resolve all automatic settings for this machine; refuse a configuration that cannot be trained."""
    validate(config)
    register_plugins(config)
    check_names(config)
    config = with_providers(config)
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    require_device(device)
    if env is None:
        backend = choose_backend(config.task, config.env, device)
    else:
        backend = FACTORY
        if config.env.backend not in ("auto", FACTORY):
            raise ConfigError(f"env.backend is {config.env.backend}, and env= makes the environments; leave one out")
    spec = env_spec(config.task, config.env, env)
    if not clips_values(config):
        # Presets clip for the scalar critic.
        config = dataclasses.replace(config, update=dataclasses.replace(config.update, value_clip=0.0))
    require_fitting_head(config, spec)
    engine = choose_engine(config, spec)
    config = dataclasses.replace(config, update=dataclasses.replace(config.update, engine=engine))
    require_compilable(config, spec, device)
    episode = spec.max_episode_steps or 1000
    twentieth, third = -(-config.steps // 20), -(-config.steps // 3)
    threads = config.threads or usable_cores()
    return dataclasses.replace(
        config,
        device=device,
        threads=threads,
        update=dataclasses.replace(config.update, processes=update_processes(config, spec, device, threads)),
        env=dataclasses.replace(config.env, backend=backend),
        eval=dataclasses.replace(config.eval, interval=config.eval.interval or twentieth),
        checkpoint=dataclasses.replace(
            config.checkpoint,
            interval=config.checkpoint.interval or min(third, max(twentieth, 20 * episode * config.env.num_envs)),
        ),
    )


LEAST_ROWS = 32
"""Minibatch rows that are worth a process of their own."""


def update_processes(config: Config, spec: EnvSpec, device: str, threads: int) -> int:
    """Return how many processes share each minibatch."""
    asked, rows = config.update.processes, config.batch_size // config.update.minibatches
    if config.algo in BASELINES:
        # Baselines have settings of their own.
        return asked
    impossible = None
    if config.algo == "trpo":
        impossible = "trpo updates in one process"
    elif device != "cpu":
        impossible = f"device {device} updates in one process"
    elif spec.observation.image:
        impossible = "images are updated on in one process, which keeps one copy of them"
    elif config.update.engine == "autograd":
        impossible = "the autograd engine updates in one process"
    elif (room := acceleration()) is None or not room.processes_supported():
        impossible = "this system cannot share memory with forked processes"
    elif asked > rows:
        impossible = f"a minibatch has {rows} rows"
    if asked > 1 and impossible:
        raise ConfigError(f"update.processes is {asked}, but {impossible}")
    return asked or (1 if impossible else max(1, min(threads, rows // LEAST_ROWS)))


def require_compilable(config: Config, spec: EnvSpec, device: str) -> None:
    """Refuse `update.compile` where torch.compile cannot work."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    impossible = None
    if config.algo not in ("ppo", "spo"):
        impossible = f"it is for the minibatch updates of ppo and spo, not for {config.algo}"
    elif spec.observation.image:
        impossible = "updates on images are not compiled"
    elif config.update.engine == "autograd":
        impossible = "it compiles the accelerated engine's passes, and update.engine is autograd"
    elif device == "cpu" and shutil.which(compiler := os.environ.get("CXX", default)) is None:
        impossible = f"there is no C++ compiler {compiler}; the environment variable CXX can name another"
    if config.update.compile and impossible:
        raise ConfigError(f"update.compile cannot be used: {impossible}")


def clips_values(config: Config) -> bool:
    """Return whether `update.value_clip` means something to the critic."""
    return config.algo in BASELINES or bool(CRITICS.get(config.critic.head).clips_values)


def require_clippable(config: Config) -> None:
    """Refuse value clipping, typed for this one run, where the critic cannot clip its values."""
    if config.update.value_clip > 0 and not clips_values(config):
        raise ConfigError(
            f"update.value_clip is {config.update.value_clip}, and the critic '{config.critic.head}' cannot clip its "
            "values; leave it out"
        )


def require_fitting_head(config: Config, spec: EnvSpec) -> None:
    """Refuse a head that does not fit the action space, before it trains to nothing without a word."""
    if config.algo in BASELINES:
        if spec.action.discrete:
            raise ConfigError(
                f"the action space is discrete, and {config.algo} draws real numbers; use a variant over bins"
            )
        return
    head = make_head(spec.action, config.head)
    if not HEADS.is_builtin(config.head.kind):
        require_shapes(head, spec.action)
    for setting, readout in (("eval.deploy", config.eval.deploy), ("eval.rank_by", config.eval.rank_by)):
        if readout == "mean" and not head.has_mean:
            raise ConfigError(f"{setting} is mean, the expected action, and the action space is discrete; use mode")


def require_device(device: str) -> None:
    try:
        # The running statistics are float64, which not every device supports.
        torch.zeros((), device=device, dtype=torch.float64)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device '{device}' cannot be used: {str(error).splitlines()[0]}") from None


def default_directory(config: Config) -> Path:
    task = config.task.rpartition(":")[2].replace("/", "-")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{task}-{config.variant}-{config.algo}-s{config.seed}-{stamp}"


def _make_trainer(config: Config, callbacks: Callbacks, env: EnvFactory | None) -> RunTrainer:
    warn_if_too_late(config.threads)
    # Processes replace the threads inside each operation rather than adding to them.
    torch.set_num_threads(1 if config.update.processes > 1 else config.threads)
    if config.algo == "td3":
        if env is not None:
            raise ConfigError("the TD3 baseline takes a task by name, not env=")
        baseline: RunTrainer = import_module("detent.baselines.td3").TD3Trainer(config, callbacks)
        return baseline
    return Trainer(config, callbacks, env)


def _run(trainer: RunTrainer, log: RunLog) -> Result:
    """Run the training loop and record in the directory how it ended, whatever happens."""
    status: Status = "failed"
    try:
        log.record(provenance=provenance())
        log.start(hardware())
        result = trainer.run(log)
        status = "finished" if result.finished else "stopped"
    except BaseException as error:
        log.set_status("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        with contextlib.ExitStack() as last:
            last.callback(log.close)
            last.callback(trainer.close)
            trainer.callbacks.end(status)
    return result


def hardware() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count(), "gpu": gpu}
