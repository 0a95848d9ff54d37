"""TensorBoard event files in the run directory."""

from __future__ import annotations

from detent.errors import ConfigError
from detent.training.callbacks import Callback, Row, RunContext, Status
from detent.training.loggers import scalars

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    raise ConfigError("tensorboard is not installed: pip install tensorboard") from None


class TensorBoardLogger(Callback):
    """Write event files to RUN/tensorboard."""

    def on_run_start(self, run: RunContext) -> None:
        # Hides events that an interrupted process wrote past this step.
        self._writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=run.step + 1)

    def on_iteration(self, run: RunContext, row: Row) -> None:
        self._write("metrics", row)

    def on_evaluation(self, run: RunContext, row: Row) -> None:
        self._write("evals", row)

    def _write(self, name: str, row: Row) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(f"{name}/{key}", value, row["step"])

    def on_run_end(self, run: RunContext, status: Status) -> None:
        self._writer.close()
