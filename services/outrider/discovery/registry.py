"""The registry protocol, and its simplest implementation: a fixed list from the configuration."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from outrider.core.errors import ConfigError


class Role(enum.Enum):
    """What a service does."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a replica is."""

    running: int = 0  # sessions that it works on
    waiting: int = 0  # sessions, or proposals, that wait for it
    capacity: int = 0  # sessions that it can work on at once
    kv_usage: float = 0.0  # 0 to 1


@dataclass(frozen=True, slots=True)
class Instance:
    """One service replica. That it is listed does not mean that it answers: links find that out."""

    role: Role
    address: str  # host:port
    name: str = ""  # a drafter's name in the configuration
    instance_id: str = ""  # empty: not known before the first call
    draining: bool = False  # about to stop: nothing new for it
    load: Load | None = None  # None: not told
    metrics: str = ""  # host:port of its /metrics page; empty: it has none


class Registry(Protocol):
    """Knows which replicas there are."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the registry itself, in words for an operator. Empty: all is well."""

    async def list(self, role: Role | None = None, name: str | None = None) -> tuple[Instance, ...]:
        """The replicas of `role` (None: of all of them) and of `name`, in a stable order."""

    def watch(self, role: Role, name: str | None = None) -> AsyncIterator[tuple[Instance, ...]]:
        """The replicas now, and again after each change. Ends when the registry is closed."""

    async def close(self) -> None:
        """End all watches. Idempotent."""


class Announcer(Protocol):
    """Enters one replica into the registry and keeps it there."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why others may not find the replica, in words for an operator. Empty: they do."""

    async def start(self, instance: Instance) -> None:
        """Enter it, and renew it until `close`. A registry that is away is tried again, and is no error."""

    def update(self, *, load: Load | None = None, draining: bool | None = None) -> None:
        """Tell what has changed; a change of `draining` at once, all else with the next heartbeat."""

    async def close(self) -> None:
        """Take it out, and stop. Idempotent."""


class StaticRegistry:
    """A list that never changes."""

    troubles: tuple[str, ...] = ()

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        """Raises ConfigError: an address is not host:port, or stands there twice for one role and name."""
        self._instances = tuple(instances)
        self._closed = asyncio.Event()
        seen: set[tuple[Role, str, str]] = set()
        for instance in self._instances:
            check_address(instance.address)
            key = (instance.role, instance.name, instance.address)
            if key in seen:
                raise ConfigError(f"{instance.role.value} address {instance.address} is listed twice")
            seen.add(key)

    async def list(self, role: Role | None = None, name: str | None = None) -> tuple[Instance, ...]:
        """See Registry. In the order of the list."""
        return tuple(chosen(self._instances, role, name))

    async def watch(self, role: Role, name: str | None = None) -> AsyncIterator[tuple[Instance, ...]]:
        """The list once; then nothing changes until the registry is closed."""
        yield await self.list(role, name)
        await self._closed.wait()

    async def close(self) -> None:
        """End all watches. Idempotent."""
        self._closed.set()


def chosen(instances: Iterable[Instance], role: Role | None, name: str | None) -> Iterator[Instance]:
    """Those of `role` and of `name`; None: of any."""
    return (one for one in instances if role in (None, one.role) and name in (None, one.name))


def check_address(address: str) -> str:
    """`address` if it is "host:port" or "[v6]:port".

    Raises:
        ConfigError: it is not.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        raise ConfigError(f"address {address!r} must be host:port, with a port from 1 to 65535")
    if ":" in host and not bracketed:
        raise ConfigError(f"address {address!r}: an IPv6 host must stand in brackets, as in [::1]:9000")
    return address
