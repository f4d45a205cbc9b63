"""One stack for all fault tests. Each test mends what it broke."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.servers import RedisServer, redis_server
from tests.stack import Stack, tiny_config
from tests.traffic import Generated, ask, connected, generate

HOSTILE = "hostile"


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The stack's session store."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Stack]:
    """Tiny models, Redis. The drafter `hostile` is configured, but for a test to play."""
    folder = tmp_path_factory.mktemp("faults")
    config = tiny_config(folder)
    config["store"] = {"kind": "redis", "url": redis.url}
    config["verifier"] |= {"max_sessions": 16, "max_queue": 256}
    config["drafters"][HOSTILE] = {"method": "prompt_lookup"}
    config["drafters"]["suffix"] = {"method": "suffix", "suffix_shared": True, "tree": "dynamic"}
    with Stack(folder, config, absent=(HOSTILE,)) as running:
        yield running


@pytest.fixture(scope="session")
def known() -> dict[bytes, list[int]]:
    """Token ids of requests answered with speculation off."""
    return {}


Expect = Callable[..., Awaitable[list[int]]]


@pytest.fixture
def expect(stack: Stack, known: dict[bytes, list[int]]) -> Expect:
    """Gives the token ids of a request as they are with speculation off."""

    async def token_ids(**request: Any) -> list[int]:
        plain = ask(**{**request, "drafter": None})
        key = plain.SerializeToString(deterministic=True)
        if key not in known:
            async with connected(stack.grpc) as stub:
                known[key] = (await generate(stub, plain)).token_ids
        return known[key]

    return token_ids


async def speculates_again(stack: Stack, drafter: str, expected: list[int], **request: Any) -> Generated:
    """Ask until the drafter's proposals count again; every answer on the way must be right."""
    async with connected(stack.grpc) as stub:
        for _ in range(200):
            got = await generate(stub, ask(drafter=drafter, **request))
            assert got.token_ids == expected
            if got.stats.drafts:
                return got
    raise AssertionError(f"{drafter} was never asked again")
