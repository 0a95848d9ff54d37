"""How OpenMP threads wait for each other, which must be set before torch is imported, and core pinning."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

WAIT_POLICY = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Makes waiting threads sleep. By default they spin, and as soon as any other job shares the cores, two spinning
threads are several times slower than one."""


def core_numbers() -> list[int]:
    """Return the numbers of the cores that this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin this thread, and those it starts meanwhile, to one core if the system allows it; None pins nothing."""
    if core is None or sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def usable_cores() -> int:
    return len(core_numbers())


def prepare_threads() -> None:
    """Set the wait policy, unless the user did or torch is already imported."""
    if "torch" not in sys.modules:
        for name, value in WAIT_POLICY.items():
            os.environ.setdefault(name, value)


def warn_if_too_late(threads: int) -> None:
    """Warn a program that imported torch before Detent that the wait policy is not set."""
    missing = [f"{name}={value}" for name, value in WAIT_POLICY.items() if name not in os.environ]
    if threads > 1 and missing:
        warnings.warn(
            f"torch was imported before detent, with {threads} threads; on a machine that runs other jobs too, set "
            f"{' '.join(missing)} in the environment, or import detent and use it before torch",
            stacklevel=2,
        )
