"""The ranks of a model as process groups of torch, one for the layers' sums and one for commands.

They are made directly, beside torch's one default group: each rank then listens on an address that it
chooses itself, and two engines in one process do not meet.

Sums are exact in the sense of the engine: an element's bits depend on the parts alone. A ring, as in
all-reduce of gloo and NCCL, adds the parts in another order for another place in the buffer, so that a
row's bits would depend on its place in the batch (two parts have one sum, three have three). Here every
rank has all parts and adds them in the order of the ranks, in float32.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

_FOR_EVER = timedelta(days=3650)
_CONNECT = timedelta(seconds=60)  # ranks that have all started meet in milliseconds
_FIRST = 1024  # int64 words of a command that go in one message


class Group(Protocol):
    """What the layers of a model need of the other ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `part` (all of one shape), the same bits on each rank."""

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        """At rank 0: every rank's `part` [rows, n], side by side [rows, size * n]. Elsewhere: `part`."""


class Alone:
    """A model that one rank runs (implements Group)."""

    rank = 0
    size = 1

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """It is the whole."""
        return part

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        """These are all."""
        return part


class GlooGroup:
    """On CPUs, over TCP (implements Group).

    Parts go from each rank to each other one directly: one hop, where gloo's own all-gather takes one for
    each rank, and its all-reduce twice as many.
    """

    def __init__(self, backend: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Args:
        backend: ProcessGroupGloo.
        rank: of this process.
        size: number of ranks.
        timeout: longest wait for another rank; then, or when one is gone, there is a RuntimeError.
        """
        self.rank = rank
        self.size = size
        self._backend = backend
        self._timeout = timeout

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See Group."""
        part = part.contiguous()
        parts = [part if peer == self.rank else torch.empty_like(part) for peer in range(self.size)]
        others = [peer for peer in range(self.size) if peer != self.rank]
        works = [self._backend.send([part], peer, 0) for peer in others]
        works += [self._backend.recv([parts[peer]], peer, 0) for peer in others]
        for work in works:
            work.wait(self._timeout)
        return sum_in_order(parts)

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        """See Group."""
        part = part.contiguous()
        if not len(part):
            return part.new_empty(0, self.size * part.shape[1])
        if self.rank:
            self._backend.send([part], 0, 0).wait(self._timeout)
            return part
        parts = [part, *(torch.empty_like(part) for _ in range(1, self.size))]
        for work in [self._backend.recv([parts[peer]], peer, 0) for peer in range(1, self.size)]:
            work.wait(self._timeout)
        return torch.cat(parts, -1)


class NcclGroup:
    """On NVIDIA GPUs (implements Group)."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        """`backend`: ProcessGroupNCCL."""
        self.rank = rank
        self.size = size
        self._backend = backend

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See Group."""
        return sum_in_order(self._all(part))

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        """See Group."""
        return torch.cat(self._all(part), -1)

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._backend.allgather([parts], [part]).wait()
        return parts


def sum_in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    """Their sum, added from the first to the last in float32 and rounded once."""
    total = parts[0].float() + parts[1]
    for part in parts[2:]:
        total += part
    return total.to(parts[0].dtype)


class Control:
    """Commands from rank 0, and what the others answer. Always over TCP, whatever the model runs on."""

    def __init__(self, backend: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Args:
        backend: ProcessGroupGloo.
        rank: of this process.
        size: number of ranks.
        timeout: longest wait of rank 0; then, or when a rank is gone, there is a RuntimeError. The others
            wait for rank 0 without end, and without a CPU.
        """
        self.rank = rank
        self.size = size
        self._backend = backend
        self._timeout = _FOR_EVER if rank else timeout

    def tell(self, words: torch.Tensor) -> None:
        """From rank 0 to all others: int64 [n]."""
        first = torch.zeros(_FIRST, dtype=torch.int64)
        first[0] = len(words)
        head, rest = words[: _FIRST - 1], words[_FIRST - 1 :].contiguous()
        first[1 : 1 + len(head)] = head
        others = range(1, self.size)
        works = [self._backend.send([first], peer, 0) for peer in others]
        if len(rest):
            works += [self._backend.send([rest], peer, 0) for peer in others]
        for work in works:
            work.wait(self._timeout)

    def hear(self) -> torch.Tensor:
        """The next command, at a follower: int64 [n]."""
        first = torch.empty(_FIRST, dtype=torch.int64)
        self._backend.recv([first], 0, 0).wait(self._timeout)
        count = int(first[0])
        if count < _FIRST:
            return first[1 : 1 + count]
        rest = torch.empty(count - (_FIRST - 1), dtype=torch.int64)
        self._backend.recv([rest], 0, 0).wait(self._timeout)
        return torch.cat((first[1:], rest))

    def answer(self, values: torch.Tensor) -> None:
        """From a follower to rank 0."""
        self._backend.send([values.contiguous()], 0, 0).wait(self._timeout)

    def answers(self, own: torch.Tensor) -> list[torch.Tensor]:
        """At rank 0: each follower's answer, of the shape and type of `own`, which is the first."""
        parts = [own, *(torch.empty_like(own) for _ in range(1, self.size))]
        for peer in range(1, self.size):
            self._backend.recv([parts[peer]], peer, 0).wait(self._timeout)
        return parts


def open_control(store: Any, rank: int, size: int, host: str, timeout_s: float) -> Control:
    """Meet the other ranks. `timeout_s`: longest wait of rank 0 for a command to be taken, or answered."""
    backend = _gloo(PrefixStore("control", store), rank, size, host)
    return Control(backend, rank, size, timedelta(seconds=timeout_s))


def open_group(store: Any, rank: int, size: int, host: str, device: str, timeout_s: float) -> Group:
    """Meet the other ranks once more, for sums. `timeout_s`: longest wait of each for the others."""
    under, timeout = PrefixStore("model", store), timedelta(seconds=timeout_s)
    if torch.device(device).type == "cpu":
        return GlooGroup(_gloo(under, rank, size, host), rank, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - the constructor takes none
    return NcclGroup(dist.ProcessGroupNCCL(under, rank, size, options), rank, size)


def _gloo(store: Any, rank: int, size: int, host: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # its stubs do not fit it
    options = gloo._Options()  # noqa: SLF001 - it has no other name
    options._timeout = _CONNECT  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=host)]  # noqa: SLF001
    return gloo(store, rank, size, options)


def listen(host: str) -> tuple[Any, str]:
    """Rank 0's store, where ranks find each other, on a free port of this address and no other.

    Returns:
        The store, and its address for RankTask.rendezvous.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen()
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def reach(rendezvous: str) -> tuple[Any, str]:
    """Rank 0's store, at a follower, and the follower's own address on the way there."""
    parts = urlsplit(rendezvous)
    host, port = str(parts.hostname), int(parts.port or 0)
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing: it only asks for the route
        return store, str(probe.getsockname()[0])
