"""Weights & Biases."""

from __future__ import annotations

import netrc
import os
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from detent.config.io import to_dict
from detent.errors import ConfigError
from detent.training.callbacks import Callback, Row, RunContext, Status
from detent.training.loggers import scalars

try:
    import wandb
except ImportError:
    raise ConfigError("wandb is not installed: pip install wandb") from None


ID_FILE = Path("wandb") / "detent-run-id"
"""Keeps the run's id at wandb in the run directory, so that a resumed run continues the same one."""


class WandbLogger(Callback):
    """Log to Weights & Biases; without a connection, to RUN/wandb, for `wandb sync`."""

    @dataclass(frozen=True)
    class Options:
        project: str = "detent"
        """Project of the run."""
        entity: str = ""
        """User or team; empty: wandb's default."""
        group: str = ""
        """Group of runs."""
        tags: tuple[str, ...] = ()
        """Tags of the run."""
        mode: Literal["auto", "online", "offline"] = "auto"
        """`auto` is wandb's own choice (the environment variable WANDB_MODE, or online)."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def on_run_start(self, run: RunContext) -> None:
        mode = self._options.mode if self._options.mode != "auto" else os.environ.get("WANDB_MODE", "online")
        try:
            if mode == "online":
                require_credentials()
            self._run = self._init(run, mode)
        except (wandb.Error, OSError) as error:
            if mode != "online":
                raise
            warnings.warn(
                f"wandb could not start online ({error}); rows go to {run.path / 'wandb'}, and `wandb sync` uploads "
                "them later",
                stacklevel=2,
            )
            # The service still holds the id that failed.
            (run.path / ID_FILE).unlink(missing_ok=True)
            self._run = self._init(run, "offline")
        # A resumed run writes rows again, and wandb refuses steps of its own that go back.
        self._run.define_metric("*", step_metric="step")

    def _init(self, run: RunContext, mode: Any) -> Any:
        options = self._options
        return wandb.init(
            project=options.project,
            entity=options.entity or None,
            group=options.group or None,
            tags=options.tags or None,
            name=run.path.name,
            dir=str(run.path),
            id=_run_id(run.path),
            resume="allow",
            mode=mode,
            config=to_dict(run.config),
            # The run prints enough, and wandb would record a live panel frame by frame.
            settings=wandb.Settings(silent=True, console="off"),
        )

    def on_iteration(self, run: RunContext, row: Row) -> None:
        self._log("metrics", row)

    def on_evaluation(self, run: RunContext, row: Row) -> None:
        self._log("evals", row)

    def _log(self, name: str, row: Row) -> None:
        self._run.log({"step": row["step"]} | {f"{name}/{key}": value for key, value in scalars(row).items()})

    def on_run_end(self, run: RunContext, status: Status) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)


def require_credentials() -> None:
    """Raise an error if wandb has no credentials: on a terminal it would prompt for them, and the run would wait."""
    if any(name in os.environ for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        known = None
    if known is None:
        raise wandb.Error("there is no API key; `wandb login` asks for it")


def _run_id(path: Path) -> str:
    """Return the run's id at wandb, made on first use."""
    file = path / ID_FILE
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text().strip()
