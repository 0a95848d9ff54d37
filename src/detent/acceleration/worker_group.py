"""Processes that share the work of a rollout or an update, one per core.

OpenMP threads synchronize within each operation, some hundred times per minibatch. If they sleep in between, a second
core gains nothing; if they spin, they slow to a crawl as soon as another job shares the machine. Python threads pass
the interpreter lock back and forth just as often. Processes that each handle a shard of a minibatch need three barriers
per minibatch, and processes with their own environments need one at each end of a rollout.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor

from detent.threads import core_numbers, pinned

Pairs: TypeAlias = dict[tuple[int, int], tuple[socket.socket, socket.socket]]
Value = TypeVar("Value")

_SPIN_SECONDS = 2e-4
"""How long a barrier spins before it sleeps, which saves a wake-up if the other processes are nearly there."""
_BOARD = 4096
"""How many numbers `WorkerGroup.sum` can add at once."""
_PR_SET_PDEATHSIG = 1
"""Linux prctl option: the signal that a process receives when its parent dies."""
_SHARED: dict[int, weakref.ref[mmap.mmap]] = {}
"""Shared memory in use, by start address."""
_LENGTH = struct.Struct("!Q")
"""Length prefix of each message that `WorkerGroup.gather` sends."""


def supported() -> bool:
    """Return whether this system can fork processes that share memory."""
    return sys.platform == "linux"


def shared_zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a CPU tensor of zeros in memory shared with processes forked later."""
    count = torch.Size(shape).numel()
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize))
    tensor = torch.frombuffer(memory, dtype=dtype, count=count).view(torch.Size(shape))
    _SHARED[tensor.untyped_storage().data_ptr()] = weakref.ref(memory)
    return tensor


def is_shared(tensor: Tensor) -> bool:
    """Return whether a tensor lives in memory from `shared_zeros`."""
    memory = _SHARED.get(tensor.untyped_storage().data_ptr())
    return memory is not None and memory() is not None


def shared_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor into memory shared with processes forked later."""
    return shared_zeros(tensor.shape, tensor.dtype).copy_(tensor)


class WorkerGroup:
    """`size` processes doing the same work; this one has number `rank`, and process 0 started the group."""

    def __init__(self, size: int, name: str = "update") -> None:
        """Prepare a group; `name` appears in the error about a process that died."""
        self.size, self.rank, self._name = size, 0, name
        # NumPy arrays, which are faster than tensors for a few numbers.
        self._boards = shared_zeros((2, size, _BOARD), torch.float64).numpy()
        self._turn = 0
        self._links: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}

    def shard(self, total: int, rank: int | None = None) -> slice:
        """Return the slice of `total` items that belongs to process `rank`, by default this process."""
        rank = self.rank if rank is None else rank
        return slice(total * rank // self.size, total * (rank + 1) // self.size)

    def pinned_core(self) -> contextlib.AbstractContextManager[None]:
        """Pin this process to its own core, but only if the group fills all cores: spare ones may serve other runs."""
        cores = core_numbers()
        return pinned(cores[self.rank] if 1 < self.size == len(cores) else None)

    def start(self, work: Callable[[], object]) -> None:
        """Fork the workers; each waits at a barrier and does `work`, over and over until process 0 is gone."""
        pairs = {(i, j): socket.socketpair() for i in range(self.size) for j in range(i + 1, self.size)}
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            for rank in range(1, self.size):
                pid = os.fork()
                if pid == 0:
                    self._serve(rank, pairs, work)
                self._pids[rank] = pid
        finally:
            self._keep_links(pairs)

    def _keep_links(self, pairs: Pairs) -> None:
        """Keep this process's ends of the connections and close all other ends."""
        for (i, j), (low, high) in pairs.items():
            for rank, other, end in ((i, j, low), (j, i, high)):
                if rank == self.rank:
                    self._links[other] = end
                else:
                    end.close()

    def _serve(self, rank: int, pairs: Pairs, work: Callable[[], object]) -> NoReturn:
        """Run a worker; whatever happens, the process exits in this function and never reaches the trainer's code."""
        code = 1
        try:
            # Process 0 decides when to stop; this process dies with it, even in the middle of its work.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            # OpenMP's threads do not survive a fork, and waiting for them would hang forever.
            torch.set_num_threads(1)
            self.rank, self._pids = rank, {}
            self._keep_links(pairs)
            while True:
                self.barrier()
                work()
        except EOFError:
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        if len(self._links) != self.size - 1:
            raise RuntimeError(f"the {self._name} processes have not been started, or are closed")
        for rank, link in self._links.items():
            try:
                link.send(b"m")
            except OSError:
                raise self._lost(rank) from None
        for rank in self._links:
            self._await(rank)

    def _await(self, rank: int) -> None:
        link = self._links[rank]
        until = time.perf_counter() + _SPIN_SECONDS
        try:
            while time.perf_counter() < until:
                try:
                    came = link.recv(1, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    os.sched_yield()
            else:
                came = link.recv(1)
        except ConnectionResetError:
            came = b""
        if not came:
            raise self._lost(rank)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes of a few numbers `[n]`, added in rank order; also acts as a barrier."""
        if self.size == 1:
            return values
        # Alternate between two boards, so that no process overwrites one before all have read it.
        self._turn = 1 - self._turn
        board = self._boards[self._turn, :, : len(values)]
        board[self.rank] = values.numpy()
        self.barrier()
        return torch.from_numpy(board.sum(0)).to(values.dtype)

    def gather(self, value: Value) -> list[Value]:
        """Return the JSON-serializable values of all processes by rank in process 0, only its own in each worker."""
        if self.rank:
            message = json.dumps(value).encode()
            try:
                self._links[0].sendall(_LENGTH.pack(len(message)) + message)
            except OSError:
                raise self._lost(0) from None
            return [value]
        values = [value]
        for rank in range(1, self.size):
            (length,) = _LENGTH.unpack(self._receive(rank, _LENGTH.size))
            values.append(json.loads(self._receive(rank, length)))
        return values

    def _receive(self, rank: int, length: int) -> bytes:
        message = b""
        while len(message) < length:
            try:
                came = self._links[rank].recv(length - len(message))
            except ConnectionResetError:
                came = b""
            if not came:
                raise self._lost(rank)
            message += came
        return message

    def _lost(self, rank: int) -> Exception:
        if self.rank:
            return EOFError()
        # When one process dies the other workers exit with code 0, so name the one with a different code.
        codes = self._end()
        rank = next((other for other, code in codes.items() if code), rank)
        code = codes[rank]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return RuntimeError(f"{self._name} process {rank} (of {self.size}) {how}; see its output above, if any")

    def close(self) -> None:
        """Kill the workers at once, whatever they are doing."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        self._end()

    def _end(self) -> dict[int, int]:
        """Close the connections, wait until the workers notice and exit, and return their exit codes."""
        for link in self._links.values():
            # Shut down explicitly, because another process may have inherited the socket.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        self._links.clear()
        codes = {rank: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for rank, pid in self._pids.items()}
        self._pids.clear()
        return codes
