"""TensorBoard event files in the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detent.config import Config
from detent.errors import ConfigError


class TensorBoardLogger:
    """Write event files to RUN/tensorboard."""

    def __init__(self, path: Path, config: Config, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("tensorboard is not installed: pip install tensorboard") from None
        # Hides events that an interrupted process wrote past this step.
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)

    def log(self, name: str, row: Mapping[str, Any]) -> None:
        for key, value in scalars(row):
            self._writer.add_scalar(f"{name}/{key}", value, row["step"])

    def close(self) -> None:
        self._writer.close()


def scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a row; those in nested tables are named `table/key`."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value
