"""The readout to deploy: chosen when a run ends, remembered by its best checkpoint."""

from __future__ import annotations

from detent.config import Config, Readout
from detent.models import checkpoints
from detent.training import checkpoint
from detent.training.callbacks import Callbacks
from detent.training.evaluate import ROW_KEYS, Evaluator, better_readout
from detent.training.run_directory import RunLog


def choose_readout(log: RunLog, config: Config, evaluator: Evaluator, callbacks: Callbacks) -> None:
    """Let the best checkpoint remember a readout: the configured one, or the better of mode and mean on new episodes.

    The expected action of a policy that has learned is often better than its most probable one, and far smoother; of a
    policy that is still broad it is worse. So it is measured.
    """
    # The run itself has imported everything that its policy needs.
    policy, state, _ = checkpoints.load_policy(log.path, "best", config.device, trust=True)
    readout: Readout = "mode"
    if config.eval.deploy != "auto":
        readout = config.eval.deploy
    elif not policy.mean_is_mode:
        found = evaluator.compare(policy, ("mode", "mean"), config.eval.deploy_episodes, ("deploy", state.step))
        readout = better_readout(found)
        log.record(readout={"step": state.step, "readout": readout, **found})
        mode, mean = (found[ROW_KEYS[name]]["return"] for name in ("mode", "mean"))
        callbacks.message(
            f"readout of the best policy (step {state.step:,}): {readout}; {config.eval.deploy_episodes} new episodes "
            f"gave {mode:.1f} with the most probable actions, {mean:.1f} with the expected ones"
        )
    checkpoint.set_readout(checkpoints.directory(log.path, state.step), readout)
