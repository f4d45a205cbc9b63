"""The registry's one key in Redis (or Valkey), and the scripts that read and write it.

`outrider:{registry:NAMESPACE}:instances` is a hash:

- `since`               when it was made (server time): another value means that the server has forgotten
- `written`             when it was written to last, in milliseconds of server time
- `ROLE/NAME/ADDRESS`   "ENDS NUMBER INSTANCE_ID JSON": the end of the lease in milliseconds of server time; a
                        number that is higher for the younger of two instances at one address

All times are the server's, so the clocks of machines do not matter.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import quote

from redis import exceptions

from outrider.core.errors import UnavailableError
from outrider.discovery.entries import EntryReader, field_of, pack
from outrider.discovery.ledger import Page
from outrider.discovery.registry import Instance
from outrider.redis_link import Script, address_of, connect

_log = logging.getLogger(__name__)

_CONNECTIONS = 2


def key_of(namespace: str) -> str:
    """The key of a namespace's registry; its name alone decides the Cluster slot."""
    return f"outrider:{{registry:{quote(namespace, safe='')}}}:instances"


class RedisLedger:
    """Implements Ledger."""

    def __init__(self, url: str, *, namespace: str, timeout_s: float, setting: str) -> None:
        """Connects at the first call. `setting` is where `url` stands in the configuration, for errors.

        Those of another `namespace` are not seen.

        Raises:
            ConfigError: `url` cannot be understood.
        """
        self.address = address_of(url, setting=setting)
        self._timeout_s = timeout_s
        self._key = key_of(namespace)
        self._redis: Any = connect(url, timeout_s=timeout_s, max_connections=_CONNECTIONS, setting=setting)
        self._enter, self._withdraw, self._list = (
            Script("outrider.discovery", name) for name in ("enter", "withdraw", "list")
        )
        self._entries = EntryReader(self.address)

    async def enter(self, instance: Instance, number: str, *, lease_s: float) -> str:
        """Enter an instance, or renew its lease; returns its number, to be said the next time.

        Raises:
            UnavailableError: Redis is away or refuses, or a younger instance lives at this address.
        """
        lease_ms = round(lease_s * 1000)
        arguments = (field_of(instance), lease_ms, instance.instance_id, number, pack(instance))
        status, value = await self._run(self._enter, *arguments)
        if status == b"taken":
            other = value.decode("ascii", "replace")
            raise UnavailableError(f"another instance ({other}) has entered itself at {instance.address}")
        return str(value.decode("ascii"))

    async def withdraw(self, instance: Instance) -> None:
        """Take an instance out, unless another one has taken its place.

        Raises:
            UnavailableError: Redis is away or refuses.
        """
        await self._run(self._withdraw, field_of(instance), instance.instance_id)

    async def read(self) -> Page:
        """Everybody whose lease is in force.

        Raises:
            UnavailableError: Redis is away or refuses.
        """
        since, stalled, *bodies = await self._run(self._list)
        return Page(since.decode("ascii", "replace"), stalled == b"1", self._entries.read(bodies))

    async def close(self) -> None:
        """Give the connections back. Idempotent."""
        await self._redis.aclose()

    async def _run(self, script: Script, *arguments: str | int) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await script.call(self._redis, (self._key,), arguments)
        except (TimeoutError, exceptions.TimeoutError) as error:
            text = f"registry {self.address} did not answer within {self._timeout_s:g} s"
            raise UnavailableError(text) from error
        except exceptions.ResponseError as error:
            raise UnavailableError(f"registry {self.address} refuses: {error}") from error
        except (exceptions.RedisError, OSError) as error:
            raise UnavailableError(f"registry {self.address} is away: {str(error).rstrip('. ')}") from error
        return reply if isinstance(reply, list) else [reply]
