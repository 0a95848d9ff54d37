"""What tests of several modules use."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure


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
