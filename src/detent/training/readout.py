"""The readout to deploy: chosen when a run ends, remembered by its best checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from detent.config import Config, Readout
from detent.models import checkpoints
from detent.seeding import derive_seed
from detent.training import checkpoint
from detent.training.dispatch import Callbacks
from detent.training.evaluate import ROW_KEYS, Evaluator, better_readout
from detent.training.run_directory import RunLog
from detent.training.signals import StopRequest

_HEARTBEAT = 30.0
"""Seconds between heartbeats while episodes run."""


class _StoppedError(Exception):
    """A stop was requested while episodes ran."""


def choose_readout(log: RunLog, config: Config, evaluator: Evaluator, callbacks: Callbacks, stop: StopRequest) -> bool:
    """Let the best checkpoint remember a readout: the configured one, or the better of mode and mean on new episodes.

    The expected action of a policy that has learned is often better than its most probable one, and far smoother; of a
    policy that is still broad it is worse. So it is measured. Return False if a stop was requested meanwhile.
    """
    # The run itself has imported everything that its policy needs.
    policy, state, _ = checkpoints.load_policy(log.path, "best", config.device, trust=True)
    readout: Readout = "mode"
    if config.eval.deploy != "auto":
        readout = config.eval.deploy
    elif policy.has_mean and not policy.mean_is_mode:
        episodes, last = config.eval.deploy_episodes, time.monotonic()
        callbacks.message(f"choosing the readout of the best policy (step {state.step:,}): {episodes} episodes each")

        def watch() -> None:
            nonlocal last
            if stop.requested:
                raise _StoppedError
            if time.monotonic() - last > _HEARTBEAT:
                last = time.monotonic()
                log.heartbeat()

        # Both play the same episodes.
        seed = derive_seed(config.seed, "deploy", state.step)
        try:
            found = evaluator.compare(policy, {"mode": seed, "mean": seed}, episodes, watch)
        except _StoppedError:
            return False
        readout = better_readout(found)
        log.record(readout={"step": state.step, "readout": readout, **found})
        mode, mean = (_told(found[ROW_KEYS[name]]) for name in ("mode", "mean"))
        callbacks.message(f"readout: {readout} (the most probable actions earned {mode}, the expected ones {mean})")
    checkpoint.set_readout(checkpoints.directory(log.path, state.step), readout)
    return True


def _told(summary: Mapping[str, Any] | None) -> str:
    """Describe an evaluation by what decides: the success rate if there is one, and the return."""
    if summary is None:
        return "nothing: no episode ended"
    success = f" with success {summary['success_once']:.2f}" if "success_once" in summary else ""
    return f"{summary['return']:.1f}{success}"
