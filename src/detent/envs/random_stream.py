"""Random numbers of its own for a simulator that draws from torch's global ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor


class RandomStream:
    """A private stream of torch's global random numbers; all other users' numbers stay unchanged."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = [device] if device.type == "cuda" else []
        self._state: list[Tensor] = []

    def seed(self, seed: int) -> None:
        with self._forked():
            torch.manual_seed(seed)
            self._remember()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from this stream instead of the global one."""
        with self._forked():
            if self._state:
                torch.set_rng_state(self._state[0])
                for device, state in zip(self._cuda, self._state[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            yield
            self._remember()

    def _forked(self) -> AbstractContextManager[None]:
        return torch.random.fork_rng(devices=self._cuda)

    def _remember(self) -> None:
        self._state = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda)]
