"""The Ray engine: every run is a Ray task that watches a `detent train` process on some node of the cluster.

All nodes must see the study's directory at the same path. A run whose node is lost resumes on another from its last
scheduled checkpoint, with bit-identical results.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detent.errors import ConfigError
from detent.study.directory import Entry
from detent.study.process import Outcome, RunProcess

LOOK = 0.2
"""Seconds between a task's checks of its process."""
REACH = 5.0
"""Seconds to wait for an answer from a cluster's address."""


class RayEngine:
    def __init__(self, address: str | None, cpus: int, gpus: float, tell: Callable[[str], None]) -> None:
        """Connect to the cluster at `address`; None starts one of `cpus` CPUs on this machine while the study runs."""
        if gpus < 0:
            raise ConfigError(f"--gpus is {gpus}; it must not be negative")
        # By default, Ray reports usage statistics to its developers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise ConfigError("Ray is not installed: pip install 'detent[ray]'") from None
        self._ray: Any = ray
        self._gpus, self._tell = gpus, tell
        self._crowded: set[int] = set()
        self._refs: dict[Any, Entry] = {}
        self._directory: Path | None = None
        where: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False}
        if address is not None:
            _require_answer(address)
            where = {"address": address}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster can be used {f'at {address}' if address else 'here'}: {str(error).splitlines()[0]}"
            ) from None
        self._task = ray.remote(_carry_out)

    def free(self) -> bool:
        """Return True: Ray keeps the queue."""
        return True

    def start(self, directory: Path, entry: Entry) -> None:
        if self._directory is None:
            self._directory = directory
            stop_path(directory).unlink(missing_ok=True)
        self._warn_if_no_room(entry["threads"])
        # The study counts retries, for both engines alike.
        options = {"num_cpus": entry["threads"], "num_gpus": self._gpus, "max_retries": 0, "name": entry["id"]}
        ref = self._task.options(**options).remote(str(directory), entry, os.getcwd(), self._gpus > 0)
        self._refs[ref] = entry

    def poll(self) -> list[tuple[Entry, Outcome]]:
        if not self._refs:
            return []
        ready, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        return [(self._refs.pop(ref), self._outcome(ref)) for ref in ready]

    def stop(self) -> None:
        if self._directory is not None:
            stop_path(self._directory).touch()

    def close(self) -> None:
        """Shut Ray down; remaining tasks end with the driver, and so do their processes."""
        self._ray.shutdown()
        if self._directory is not None:
            stop_path(self._directory).unlink(missing_ok=True)

    def _warn_if_no_room(self, threads: int) -> None:
        """Warn if no node could ever take a run of this many threads: Ray waits silently for one that can."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fits = any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= self._gpus for node in nodes)
        if not fits and threads not in self._crowded:
            self._crowded.add(threads)
            self._tell(f"no node of the cluster has {threads} CPUs and {self._gpus:g} GPUs; waiting for one to join")

    def _outcome(self, ref: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(ref)
        except errors.RayTaskError as error:
            return Outcome("failed", str(error.cause))
        except errors.RayError as error:
            return Outcome("killed", f"its node or worker was lost ({type(error).__name__})")
        return outcome


def stop_path(directory: Path) -> Path:
    """Return the file that tells the tasks on all nodes to stop."""
    return directory / "stop"


def _carry_out(directory: str, entry: Entry, cwd: str, see_gpus: bool) -> Outcome:
    """Execute a run's process from start to end, as a Ray task."""
    path = Path(directory)
    if not (path / "study.json").exists():
        return Outcome("failed", f"{platform.node()} does not see {path}; all nodes of the cluster must share it")
    if Path(cwd).is_dir():
        # The user's own environments may be defined there.
        os.chdir(cwd)
    process = RunProcess(path, entry, {} if see_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    while True:
        if stop_path(path).exists():
            process.stop()
        outcome = process.advance()
        if outcome is not None:
            return outcome
        time.sleep(LOOK)


def _require_answer(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would keep trying for a long time."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(f"--address is '{address}'; it must be HOST:PORT or auto, on a machine of the cluster")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
