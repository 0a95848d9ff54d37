"""What tests of several modules use."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

WITH_PROCESSES = (
    "acceleration/test_accelerated_collector.py",
    "acceleration/test_accelerated_update.py",
    "acceleration/test_worker_group.py",
    "analysis",
    "baselines",
    "bench",
    "cli",
    "envs/test_envpool.py",
    "envs/test_factory.py",
    "envs/test_maniskill.py",
    "envs/test_workers.py",
    "examples",
    "models/test_images.py",
    "plugins",
    "report/test_browser.py",
    "report/test_making.py",
    "study/test_engine.py",
    "study/test_ray.py",
    "test_doctor.py",
    "test_layers.py::test_needs",
    "test_layers.py::test_loading",
    "test_layers.py::test_training",
    "test_package.py",
    "test_snippets.py",
    "test_threads.py",
    "training",
)
"""Tests that start programs, simulators or browsers, or train for seconds; `make test-fast` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(WITH_PROCESSES):
            item.add_marker("processes")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    saved: list[Figure] = []
    original = Figure.savefig

    def savefig(self: Figure, *arguments: Any, **options: Any) -> None:
        saved.append(self)
        original(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved
