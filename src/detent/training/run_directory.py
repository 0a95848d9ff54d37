"""A run's directory: configuration, status, metrics, evaluations, and a lock that keeps other processes out."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import socket
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from detent.config import Config
from detent.config.io import read_run_config, save_config
from detent.errors import ConfigError, RunError

HEARTBEAT_TIMEOUT = 600.0
"""Seconds without a heartbeat after which a lock held on another host counts as stale."""

PACKAGES = ("detent", "torch", "numpy", "gymnasium", "mujoco", "envpool", "mani_skill", "sapien", "stable-baselines3")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file so that readers see the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a `.jsonl` file, without a last line torn by a crash."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise RunError(f"line {number} of {path} is not valid JSON") from None
    return rows


def current_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics under its current names.

    Version 0.1.0 wrote the sampled KL estimate of PPO and SPO as `kl`, the name of TRPO's exact KL.
    """
    if "clip_fraction" not in row:
        return dict(row)
    return {f"approx_{key}" if key.startswith("kl") else key: value for key, value in row.items()}


def versions() -> dict[str, str]:
    out = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return out


class RunLog:
    """A run directory held by this process; open it with `create` or `reopen`, and `close` it at the end."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._lock = acquire_lock(path)
        self._files: dict[str, TextIO] = {}
        self._opened = time.monotonic()
        self._info: dict[str, Any] = {"task": config.task, "variant": config.variant, "algo": config.algo}
        self._info |= {"seed": config.seed, "interruptions": []}
        # A run killed right after it was created has no run.json yet.
        if (path / "run.json").exists():
            self._info |= json.loads((path / "run.json").read_text())
        self._earlier_wall_time = float(self._info.get("wall_time", 0.0))

    @classmethod
    def create(cls, path: Path, config: Config) -> RunLog:
        """Create a run directory; one that already holds anything is never touched."""
        # A process killed before it wrote anything leaves only the lock.
        if path.exists() and (not path.is_dir() or any(entry.name != "lock" for entry in path.iterdir())):
            hint = (
                f"detent train --resume {path} continues it" if (path / "config.toml").exists() else "it is not empty"
            )
            raise ConfigError(f"{path} exists already ({hint}); choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot be created ({error.strerror}); choose another --out") from None
        log = cls(path, config)
        save_config(config, path / "config.toml")
        return log

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunLog, Config]:
        """Open an existing run to resume it."""
        config = read_run_config(path)
        return cls(path, config), config

    def start(self, hardware: Mapping[str, Any]) -> None:
        """Set the status to `running`."""
        self._info |= {"versions": versions(), "hardware": dict(hardware)}
        self.set_status("running", None)

    @property
    def status(self) -> str | None:
        """Return the run's status when it was opened, or the one set since."""
        status: str | None = self._info.get("status")
        return status

    def set_status(self, status: str, reason: str | None) -> None:
        """Write `running`, `finished`, `stopped` or `failed`, with the reason, to run.json."""
        self._info |= {"status": status, "exit_reason": reason, "wall_time": self.wall_time()}
        write_json(self.path / "run.json", self._info)

    def interrupted(self, step: int, exact: bool) -> None:
        """Record where the run was resumed, and whether it is bit-identical to an uninterrupted run."""
        self._info["interruptions"].append({"resumed_at_step": step, "exact": exact})

    def wall_time(self) -> float:
        """Return the seconds spent on this run, summed over the processes that worked on it one after the other."""
        return self._earlier_wall_time + time.monotonic() - self._opened

    def record(self, **information: Any) -> None:
        """Add to what run.json says; the next status writes it."""
        self._info |= _finite(information)

    def append(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row to `<name>.jsonl` and return it as written: NaN becomes null."""
        if name not in self._files:
            self._files[name] = (self.path / f"{name}.jsonl").open("a")
        clean: dict[str, Any] = _finite(row)
        self._files[name].write(json.dumps(clean) + "\n")
        self._files[name].flush()
        return clean

    def heartbeat(self) -> None:
        """Show other hosts that this process is alive, and update the wall time in run.json."""
        os.utime(self._lock.fileno())
        self.set_status("running", None)

    def sync(self) -> None:
        """Flush all rows to disk, before a checkpoint that relies on them."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def rewind(self, step: int) -> None:
        """Drop rows past `step`: a resumed run writes them again."""
        for name in ("metrics", "evals"):
            path = self.path / f"{name}.jsonl"
            if path.exists():
                kept = [row for row in read_rows(path) if row["step"] <= step]
                temporary = path.with_suffix(".tmp")
                temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
                temporary.replace(path)

    def close(self) -> None:
        if self._lock.closed:
            return
        for file in self._files.values():
            file.close()
        release_lock(self._lock)


def _finite(value: Any) -> Any:
    """Return `value` with every NaN and infinity in it replaced by None, since JSON has neither."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def acquire_lock(path: Path) -> TextIO:
    """Lock a directory: a kernel lock on this host (released when the process dies), a heartbeat for other hosts."""
    file = (path / "lock").open("a+")
    # `lock_holder` in another process may hold the lock for a moment.
    for attempt in range(5):
        file.seek(0)
        holder, _, pid = file.read().partition(" ")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt == 4:
                file.close()
                raise RunError(f"{path} is in use by process {pid.strip()} on {holder}") from None
            time.sleep(0.05)
    age = time.time() - os.fstat(file.fileno()).st_mtime
    if holder and holder != socket.gethostname() and age < HEARTBEAT_TIMEOUT:
        file.close()
        raise RunError(
            f"{path} is in use by process {pid.strip()} on {holder} (last heartbeat {age:.0f} s ago); "
            f"if that host is gone, remove {path / 'lock'}"
        )
    file.truncate(0)
    file.write(f"{socket.gethostname()} {os.getpid()}\n")
    file.flush()
    return file


def release_lock(file: TextIO) -> None:
    """Release the lock, so that another host can resume at once."""
    file.truncate(0)
    file.close()


def lock_holder(path: Path) -> str | None:
    """Return the `process N on HOST` that holds the directory's lock, None if there is none; change nothing."""
    try:
        with (path / "lock").open() as file:
            holder, _, pid = file.read().partition(" ")
            if holder == socket.gethostname():
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    alive = False
                except BlockingIOError:
                    alive = True
            else:
                alive = bool(holder) and time.time() - os.fstat(file.fileno()).st_mtime < HEARTBEAT_TIMEOUT
    except FileNotFoundError:
        return None
    return f"process {pid.strip()} on {holder}" if alive else None
