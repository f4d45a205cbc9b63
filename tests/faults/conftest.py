"""The stacks of the fault tests, each started once. Each test mends what it broke."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.faults import kinds
from tests.idle import wait_until_idle
from tests.proxy import Proxy
from tests.servers import RedisServer, redis_server
from tests.stack import Stack, tiny_config
from tests.traffic import Generated, ask, connected, generate, generate_all

HOSTILE = "hostile"
LATER = "twin-3"
"""The replica of the pair's drafter that a test starts itself."""


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The session store of `stack`."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Stack]:
    """One verifier, four drafters, Redis. The drafter `hostile` is configured, but for a test to play."""
    folder = tmp_path_factory.mktemp("faults")
    config = tiny_config(folder)
    config["store"] = {"kind": "redis", "url": redis.url}
    config["verifier"] |= {"max_sessions": 16, "max_queue": 256}
    config["drafters"][HOSTILE] = {"method": "prompt_lookup"}
    config["drafters"]["suffix"] = {"method": "suffix", "suffix_shared": True, "tree": "dynamic"}
    with Stack(folder, config, absent=(HOSTILE,)) as running:
        yield running


@pytest.fixture(scope="session")
def shared() -> Iterator[RedisServer]:
    """The session store and registry of `pair`."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def store_link(shared: RedisServer) -> Iterator[Proxy]:
    """Through which the services of `pair` reach it."""
    with Proxy(f"127.0.0.1:{shared.port}") as proxy:
        yield proxy


@pytest.fixture(scope="session")
def pair_running(
    tmp_path_factory: pytest.TempPathFactory, shared: RedisServer, store_link: Proxy
) -> Iterator[Stack]:
    """Two verifiers behind proxies, two gateways, two replicas of a drafter, a registry."""
    folder = tmp_path_factory.mktemp("pair")
    config = tiny_config(folder)
    config["drafters"].pop("other")
    config["store"] = {"kind": "redis", "url": f"redis://{store_link.address}/0", "timeout_s": 0.5}
    config["registry"] = {"kind": "redis", "lease_s": 1.5, "heartbeat_s": 0.25}
    config["verifier"] |= {"max_sessions": 16, "detached_s": 0.5, "drain_s": 0.5, "rest_ms": 200}
    config["gateway"] = {"probe_s": 0.2, "verifier_timeout_s": 1.0, "failover_s": 60}
    with Stack(
        folder,
        config,
        verifiers=2,
        gateways=2,
        replicas={"twin": 3},
        later=(LATER,),
        proxied=("verifier-1", "verifier-2", "twin-1"),
    ) as running:
        yield running


@pytest.fixture
def pair(pair_running: Stack, store_link: Proxy) -> Iterator[Stack]:
    """`pair_running`, whole before the test; after it, all that was held is given back."""
    for service in pair_running.services.values():
        if service.process is not None:
            service.wait_serving()
    yield pair_running
    store_link.heal()
    for proxy in pair_running.proxies.values():
        proxy.heal()
    for service in pair_running.services.values():
        if service.process is not None:
            service.thaw()
            service.wait_serving()
    wait_until_idle(pair_running)


@pytest.fixture(scope="session")
def undisturbed_runs() -> dict[str, Generated]:
    """Filled by `undisturbed`."""
    return {}


@pytest.fixture
async def undisturbed(pair: Stack, undisturbed_runs: dict[str, Generated]) -> dict[str, Generated]:
    """The streams of every kind as they are without speculation (its rules aside) and without faults."""
    if not undisturbed_runs:
        asked = [
            kinds.request(kind, drafter=None if kind in kinds.DETERMINED else "twin") for kind in kinds.KINDS
        ]
        async with connected(pair.grpc) as stub:
            undisturbed_runs |= zip(kinds.KINDS, await generate_all(stub, asked), strict=True)
    return undisturbed_runs


@pytest.fixture
def only(pair: Stack) -> Callable[[str], AbstractContextManager[Proxy]]:
    """Makes one verifier the only one that gateways reach; `accept` of what it gives ends that."""

    @contextmanager
    def only_reached(name: str) -> Iterator[Proxy]:
        (other,) = {"verifier-1", "verifier-2"} - {name}
        proxy = pair.proxies[other]
        proxy.refuse()
        try:
            yield proxy
        finally:
            proxy.accept()

    return only_reached


@pytest.fixture(scope="session")
def known() -> dict[bytes, list[int]]:
    """Token ids of requests answered with speculation off."""
    return {}


Only = Callable[[str], AbstractContextManager[Proxy]]
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
