"""Running the Lua scripts: on one server (Sentinel's master too) and on a Cluster.

A server runs a script for any keys, so all writes of a moment are one call: one command, however many they
are. A node of a Cluster wants all keys of a script in one slot, and each session has a slot of its own: there
the writes of a session are one call, and the calls for one node travel together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis import exceptions
from redis.asyncio import Redis, RedisCluster

from outrider.redis_link import Argument, Client, Script

PREFIX = "outrider"


@dataclass(frozen=True, slots=True)
class Write:
    """One write, as lua/write.lua takes it."""

    session_id: str
    arguments: tuple[Argument, ...]  # kind and epoch first

    @property
    def weight(self) -> int:
        """Bytes on the wire, about."""
        return 100 + sum(len(argument) for argument in self.arguments if not isinstance(argument, int))


class Runner(Protocol):
    """Runs scripts. Raises what redis-py raises."""

    async def run(self, script: Script, session_id: str, *arguments: Argument) -> Any:
        """For one session."""

    async def run_writes(self, script: Script, writes: Sequence[Write], *arguments: Argument) -> list[Any]:
        """For many sessions; `arguments` stand before theirs. A reply, or an exception, for each of them."""


def runner(client: Client) -> Runner:
    """The one that fits `client`."""
    return _Spread(client) if isinstance(client, RedisCluster) else _Single(client)


def keys_of(session_id: str) -> tuple[str, str]:
    """Meta and tokens. Braces in an id would move the hash tag; the wire layer refuses them."""
    return f"{PREFIX}:{{{session_id}}}:meta", f"{PREFIX}:{{{session_id}}}:tokens"


class _Single:
    def __init__(self, client: Redis) -> None:
        self._client: Any = client
        self._apart = False  # a proxy in front of several servers refuses keys of different slots

    async def run(self, script: Script, session_id: str, *arguments: Argument) -> Any:
        return await script.call(self._client, keys_of(session_id), arguments)

    async def run_writes(self, script: Script, writes: Sequence[Write], *arguments: Argument) -> list[Any]:
        if not self._apart:
            try:
                return list(await script.call(self._client, *_flat(writes, arguments)))
            except exceptions.ClusterCrossSlotError:
                self._apart = True
        return await _by_session(self._client, script, writes, arguments)


class _Spread:
    def __init__(self, client: RedisCluster) -> None:
        self._client: Any = client
        self._map_is_old = False

    async def run(self, script: Script, session_id: str, *arguments: Argument) -> Any:
        return await script.call(self._client, keys_of(session_id), arguments)

    async def run_writes(self, script: Script, writes: Sequence[Write], *arguments: Argument) -> list[Any]:
        if self._map_is_old:  # a pipeline by itself would ask a node that is dead for ever
            await self._client.nodes_manager.initialize()
        self._map_is_old = True  # unless all of this goes well
        replies = await _by_session(self._client, script, writes, arguments)
        self._map_is_old = any(isinstance(reply, _LOST) for reply in replies)
        return replies


_Call = tuple[tuple[str, ...], tuple[Argument, ...]]
_LOST = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
)


async def _by_session(
    client: Any, script: Script, writes: Sequence[Write], arguments: tuple[Argument, ...]
) -> list[Any]:
    """One call for each session, all in one round trip."""
    groups: dict[str, list[int]] = {}
    for index, write in enumerate(writes):
        groups.setdefault(write.session_id, []).append(index)
    calls = [_flat([writes[index] for index in group], arguments) for group in groups.values()]
    answers = await _pipeline(client, "EVALSHA", script.sha, calls)
    unknown = [i for i, answer in enumerate(answers) if isinstance(answer, exceptions.NoScriptError)]
    again = await _pipeline(client, "EVAL", script.text, [calls[index] for index in unknown])
    for index, answer in zip(unknown, again, strict=True):
        answers[index] = answer
    replies: list[Any] = [None] * len(writes)
    for group, answer in zip(groups.values(), answers, strict=True):
        for place, index in enumerate(group):
            replies[index] = answer if isinstance(answer, Exception) else answer[place]
    return replies


async def _pipeline(client: Any, command: str, script: str, calls: Sequence[_Call]) -> list[Any]:
    if not calls:
        return []
    pipeline = client.pipeline(transaction=False)
    for keys, arguments in calls:
        pipeline.execute_command(command, script, len(keys), *keys, *arguments)
    return list(await pipeline.execute(raise_on_error=False))


def _flat(writes: Sequence[Write], arguments: tuple[Argument, ...]) -> _Call:
    """Keys and arguments of one call."""
    keys = tuple(key for write in writes for key in keys_of(write.session_id))
    return keys, (*arguments, *(argument for write in writes for argument in write.arguments))
