"""The registry in Redis: who enters is found, who dies is forgotten, and Redis itself may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from outrider.config import OutriderConfig
from outrider.core.errors import ConfigError
from outrider.discovery import (
    Instance,
    LeaseAnnouncer,
    LeaseRegistry,
    NullAnnouncer,
    Role,
    StaticRegistry,
    advertised,
    open_announcer,
    open_registry,
)
from outrider.discovery.redis_ledger import key_of
from tests.integration.discovery.conftest import die, listed_are, until
from tests.servers import RedisServer

A = Instance(Role.DRAFTER, "127.0.0.1:1", "draft", "a1")
B = Instance(Role.DRAFTER, "127.0.0.1:2", "draft", "b1")
C = Instance(Role.DRAFTER, "127.0.0.1:2", "lookup", "c1")
V = Instance(Role.VERIFIER, "[::1]:9100", "", "v1")

KEY = key_of(OutriderConfig().name)

Make = Callable[[], LeaseAnnouncer]


async def test_who_dies_is_gone_when_its_lease_is_over_and_not_before(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    first, second = announcer(), announcer()
    await first.start(A)
    await second.start(B)
    await die(first)
    async with Redis.from_url(server.url, protocol=2) as redis:

        async def over() -> bool:
            ends = int((await redis.hget(KEY, "drafter/draft/127.0.0.1:1")).split()[0])
            listed = A in await registry.list(Role.DRAFTER)
            seconds, micros = await redis.time()
            assert listed or 1000 * seconds + micros / 1000 >= ends
            return not listed

        await until(over)
    assert await registry.list(Role.DRAFTER) == (B,)


async def test_while_redis_is_away_the_last_list_stays_in_force(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    one, other = announcer(), announcer()
    await one.start(A)
    await other.start(B)
    assert await registry.list(Role.DRAFTER) == (A, B)
    server.stop()
    for _ in range(3):
        assert await registry.list(Role.DRAFTER) == (A, B)
    assert "is away" in registry.troubles[0] and "stays in force" in registry.troubles[0]
    assert ".;" not in registry.troubles[0]

    async def told() -> bool:
        return bool(one.troubles)

    await until(told)
    await die(other)
    server.start()  # empty: it has forgotten everybody

    async def b_is_gone() -> bool:
        listed = await registry.list(Role.DRAFTER)
        assert A in listed
        return B not in listed

    await until(b_is_gone)
    assert registry.troubles == one.troubles == ()


async def test_a_redis_that_was_flushed_makes_nobody_vanish(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    await announcer().start(A)
    assert await registry.list(Role.DRAFTER) == (A,)
    async with Redis.from_url(server.url, protocol=2) as redis:
        for _ in range(20):
            await redis.flushall()
            assert await registry.list(Role.DRAFTER) == (A,)


async def test_a_redis_that_was_frozen_for_longer_than_a_lease_makes_nobody_vanish(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    one, other = announcer(), announcer()
    await one.start(A)
    await other.start(B)
    server.freeze()
    loop = asyncio.get_running_loop()
    frozen_at = loop.time()
    while loop.time() < frozen_at + 1.0:  # longer than a lease
        assert {A, B} >= set(await registry.list(Role.DRAFTER))
    server.thaw()

    async def recovered() -> bool:
        assert await registry.list(Role.DRAFTER) == (A, B)
        return not (registry.troubles or one.troubles or other.troubles)

    await until(recovered)


@pytest.mark.parametrize("setting", [("maxmemory", "1"), ("min-replicas-to-write", "1")])
async def test_a_redis_that_takes_no_writes_makes_nobody_vanish(
    registry: LeaseRegistry, announcer: Make, server: RedisServer, setting: tuple[str, str]
) -> None:
    one, other = announcer(), announcer()
    await one.start(A)
    await other.start(B)
    async with Redis.from_url(server.url, protocol=2) as redis:
        await redis.config_set(*setting)
        full = setting[0] == "maxmemory"
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + 1.0:  # longer than a lease
            assert await registry.list(Role.DRAFTER) == (A, B)
        # A lease takes next to no memory: a server that is full still takes it.
        assert bool(one.troubles) is not full and bool(registry.troubles) is not full
        await redis.config_set(setting[0], "0")

        async def recovered() -> bool:
            assert await registry.list(Role.DRAFTER) == (A, B)
            return not (registry.troubles or one.troubles or other.troubles)

        await until(recovered)


async def test_who_starts_while_redis_is_away_enters_when_it_is_back(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    server.stop()
    one = announcer()
    await one.start(A)
    assert "is away" in one.troubles[0]
    assert await registry.list(Role.DRAFTER) == ()
    assert "nobody is known yet" in registry.troubles[0]
    server.start()
    await until(lambda: listed_are(registry, A))


async def test_closing_while_redis_is_away_is_no_error(announcer: Make, server: RedisServer) -> None:
    one = announcer()
    await one.start(A)
    server.freeze()
    await one.close()


async def test_what_others_wrote_is_left_out(
    registry: LeaseRegistry, announcer: Make, server: RedisServer
) -> None:
    await announcer().start(A)
    async with Redis.from_url(server.url, protocol=2) as redis:
        ends = (await redis.hget(KEY, "drafter/draft/127.0.0.1:1")).split()[0] + b"000"
        for number, value in enumerate(
            [
                b"nonsense",
                b"",
                ends + b" 1 x not json",
                ends + b' 1 x {"role":"drafter"}',
                ends + b' 1 x {"role":"king","name":"","address":"h:1","instance_id":"","draining":false}',
                ends + b' 1 x {"role":"drafter","name":1,"address":"h:1","instance_id":"","draining":false}',
                ends + b' 1 x {"role":"drafter","name":"","address":"h","instance_id":"","draining":false}',
                ends + b" 1 x " + b"[" * 4000,
                ends + b" 1 x " + b" " * 5000,
            ]
        ):
            await redis.hset(KEY, f"junk{number}", value)
    assert await registry.list(Role.DRAFTER) == (A,)
    await announcer().start(B)
    assert await registry.list(Role.DRAFTER) == (A, B)


async def test_those_who_died_long_ago_are_swept_out(announcer: Make, server: RedisServer) -> None:
    async with Redis.from_url(server.url, protocol=2) as redis:
        await redis.hset(KEY, "drafter/draft/old:1", "1 1 x {}")
        await announcer().start(A)
        assert set(await redis.hkeys(KEY)) == {b"since", b"written", b"drafter/draft/127.0.0.1:1"}
        assert 0 < await redis.pttl(KEY) <= 86_400_000


def test_what_the_configuration_asks_for(config: OutriderConfig) -> None:
    fixed = OutriderConfig.model_validate(
        {
            "verifier": {"host": "v", "port": 1},
            "drafters": {"one": {"host": "d", "port": 2}, "many": {"addresses": ["x:1", "y:1"]}},
        }
    )
    assert isinstance(open_announcer(fixed), NullAnnouncer)
    assert isinstance(open_registry(fixed, Role.VERIFIER), StaticRegistry)


async def test_the_fixed_list_of_a_configuration() -> None:
    fixed = OutriderConfig.model_validate(
        {
            "verifier": {"host": "v", "port": 1},
            "drafters": {"one": {"host": "d", "port": 2}, "many": {"addresses": ["x:1", "y:1"]}},
        }
    )
    assert await open_registry(fixed, Role.VERIFIER).list(Role.VERIFIER) == (Instance(Role.VERIFIER, "v:1"),)
    drafters = open_registry(fixed, Role.DRAFTER)
    assert await drafters.list(Role.DRAFTER, "one") == (Instance(Role.DRAFTER, "d:2", "one"),)
    assert [i.address for i in await drafters.list(Role.DRAFTER, "many")] == ["x:1", "y:1"]
    assert drafters.troubles == ()
    listed = fixed.model_copy(update={"gateway": fixed.gateway.model_copy(update={"verifiers": ("w:1",)})})
    assert await open_registry(listed, Role.VERIFIER).list(Role.VERIFIER) == (Instance(Role.VERIFIER, "w:1"),)


@pytest.mark.parametrize("setting", ["registry", "store"])
def test_a_url_that_cannot_be_read_is_named_and_not_repeated(setting: str) -> None:
    wrong = {setting: {"url": "http://user:hunter2@host"}}
    config = OutriderConfig.model_validate(
        {**wrong, "registry": {**wrong.get("registry", {}), "kind": "redis"}}
    )
    for use in (open_announcer, lambda config: open_registry(config, Role.VERIFIER)):
        with pytest.raises(ConfigError, match=rf"{setting}\.url") as caught:
            use(config)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("advertise", "listening", "address"),
    [
        ("", "127.0.0.1:9", "127.0.0.1:9"),
        ("host:7", "0.0.0.0:9", "host:7"),
        ("host:0", "0.0.0.0:9", "host:9"),
        ("[::1]:0", "[::]:9", "[::1]:9"),
    ],
)
def test_the_address_that_others_are_told(
    config: OutriderConfig, advertise: str, listening: str, address: str
) -> None:
    assert advertised(config, advertise, listening, "verifier.advertise") == address


@pytest.mark.parametrize("listening", ["0.0.0.0:9", "[::]:9"])
def test_an_address_that_nobody_else_can_reach_is_refused(config: OutriderConfig, listening: str) -> None:
    with pytest.raises(ConfigError, match=r"verifier\.advertise must be set"):
        advertised(config, "", listening, "verifier.advertise")
    assert advertised(OutriderConfig(), "", listening, "verifier.advertise") == listening


async def test_deployments_of_other_models_on_one_redis_do_not_see_each_other(
    config: OutriderConfig, registry: LeaseRegistry, announcer: Make
) -> None:
    await announcer().start(A)
    other = config.model_copy(update={"served_name": "another {model}"})
    theirs, entered = open_registry(other, Role.DRAFTER), open_announcer(other)
    await entered.start(B)
    assert await theirs.list(Role.DRAFTER) == (B,)
    assert await registry.list(Role.DRAFTER) == (A,)
    await entered.close()
    await theirs.close()
