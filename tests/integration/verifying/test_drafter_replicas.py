"""Several replicas of one drafter: sessions are spread, move when theirs goes, and the output is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from outrider.config.schema import DrafterConfig, OutriderConfig, RegistryConfig
from outrider.core.rounds import StaleReason
from outrider.discovery import Instance, Role, open_announcer
from outrider.wire import convert
from outrider.wire.messages import AdvanceDraft, Draining, OpenDraft, SessionTokens, Stale
from tests.integration.verifying.feature_log import check, needing, openings
from tests.integration.verifying.harness import OFF, Reply, Verifier, real_drafter, request, running, until
from tests.integration.verifying.scripted import (
    CloseStreamError,
    Held,
    Script,
    ScriptedDrafter,
    knowing,
    scripted,
)
from tests.servers import RedisServer, redis_server

LONG = 240


def replicas(*configs: DrafterConfig) -> dict[str, DrafterConfig]:
    """One drafter with so many replicas."""
    addresses = tuple(f"127.0.0.1:{config.port}" for config in configs)
    return {"s": configs[0].model_copy(update={"addresses": addresses})}


def drafts(reply: Reply) -> int:
    assert reply.finished is not None
    return reply.finished.speculation.drafts


def missed(reply: Reply) -> int:
    assert reply.finished is not None
    return reply.finished.speculation.missed


def accepted_by(drafter: ScriptedDrafter) -> int:
    return sum(command.accepted for command in drafter.commands if isinstance(command, AdvanceDraft))


def opened_on(drafter: ScriptedDrafter) -> list[OpenDraft]:
    return [command for command in drafter.commands if isinstance(command, OpenDraft)]


async def ready(verifier: Verifier, count: int) -> None:
    """Wait until there are so many replicas, all of them ready."""
    await until(lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * count)


async def plain(tiny: Path, prompts: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    """What each prompt leads to."""
    async with running(tiny) as verifier:
        wanted = [request(p, max_tokens=LONG, speculation=OFF) for p in prompts]
        outputs = await verifier.generate_all(wanted)
    return dict(zip(map(tuple, prompts), outputs, strict=True))


@pytest.fixture(scope="module")
def known() -> dict[tuple[int, ...], list[int]]:
    """Filled by `right`."""
    return {}


@pytest.fixture
async def right(
    tiny: Path, prompts: list[list[int]], known: dict[tuple[int, ...], list[int]]
) -> dict[tuple[int, ...], list[int]]:
    if not known:
        known |= await plain(tiny, prompts)
    return dict(known)


async def test_sessions_are_spread_over_the_replicas(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    script = knowing(right, lambda _, tokens: tokens)
    one, two = ScriptedDrafter(script), ScriptedDrafter(script)
    async with (
        scripted(one) as first,
        scripted(two) as second,
        running(tiny, drafters=replicas(first, second)) as verifier,
    ):
        await until(lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * 2)
        outputs = await verifier.generate_all([request(p, max_tokens=LONG) for p in prompts])
        assert outputs == list(right.values())
        info = convert.verifier_info_from_proto(
            await verifier.client.GetInfo(convert.verifier_info_request())
        )
        assert info.drafters == ("s",) and info.degraded == ()
        assert verifier.metric("outrider_drafter_link_state", drafter="s", state="ready") == 2
    assert len(opened_on(one)) == len(opened_on(two)) == len(prompts) / 2


def interrupted(right: dict[tuple[int, ...], list[int]], words: Callable[[Held], list | None]) -> Script:
    """Knows everything; in mid-session, once for all who share this script, it says something else."""
    said: list[Held] = []
    answer = knowing(right, lambda _, tokens: tokens)

    def script(held: Held) -> Iterator:
        if len(held.tokens) > len(min(right, key=len)) + 60 and not said:
            said.append(held)
            instead = words(held)
            if instead is not None:
                yield from instead
                return
        yield from answer(held)

    return script


def broken(held: Held) -> list:
    raise CloseStreamError


def full(held: Held) -> list:
    return [Stale(held.session_id, held.epoch, StaleReason.FULL)]


def drains(held: Held) -> list:
    return [Draining(60_000)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("words", [broken, full], ids=["its link breaks", "it is full"])
async def test_a_session_goes_on_with_another_replica(
    tiny: Path,
    prompts: list[list[int]],
    right: dict[tuple[int, ...], list[int]],
    words: Callable[[Held], list | None],
) -> None:
    script = interrupted(right, words)
    one, two = ScriptedDrafter(script), ScriptedDrafter(script)
    async with (
        scripted(one) as first,
        scripted(two) as second,
        running(tiny, drafters=replicas(first, second)) as verifier,
    ):
        await until(lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * 2)
        reply = await verifier.generate(request(prompts[0], max_tokens=LONG))
    assert reply.tokens == right[tuple(prompts[0])]
    before, after = (one, two) if len(opened_on(one)[0].token_ids) == len(prompts[0]) else (two, one)
    assert len(opened_on(before)) == len(opened_on(after)) == 1
    assert len(opened_on(after)[0].token_ids) > 60
    assert accepted_by(before) > 30 and accepted_by(after) > 100
    assert missed(reply) == 0
    assert reply.finished is not None
    (stats,) = reply.finished.speculation.drafters
    assert stats.name == "s" and stats.accepted_tokens == reply.finished.speculation.accepted_tokens > 130


@pytest.mark.usefixtures("patient")
async def test_when_a_replica_drains_its_session_moves_and_no_round_misses(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    answer = knowing(right, lambda _, tokens: tokens)
    script = interrupted(right, lambda held: [*drains(held), *answer(held)])
    one, two = ScriptedDrafter(script), ScriptedDrafter(script)
    async with (
        scripted(one) as first,
        scripted(two) as second,
        running(tiny, drafters=replicas(first, second)) as verifier,
    ):
        await until(lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * 2)
        reply = await verifier.generate(request(prompts[0], max_tokens=LONG))
        assert reply.tokens == right[tuple(prompts[0])] and missed(reply) == 0
        before, after = (one, two) if len(opened_on(one)[0].token_ids) == 1 else (two, one)
        assert accepted_by(before) > 30 and accepted_by(after) > 100
        assert before.held == {}  # it was told that the session is not its own any more
        # From now on the other one gets them all.
        sent = len(before.commands)
        await verifier.generate_all([request(p) for p in prompts])
        assert len(before.commands) == sent
        assert verifier.replica.links.troubles == ()


@pytest.mark.usefixtures("patient")
async def test_the_next_replica_gets_all_hidden_states_and_the_same_bits(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    script = interrupted(right, broken)
    one, two = ScriptedDrafter(script, info=needing()), ScriptedDrafter(script, info=needing())
    async with (
        scripted(one) as first,
        scripted(two) as second,
        running(tiny, drafters=replicas(first, second), prefix_cache=False) as verifier,
    ):
        await ready(verifier, 2)
        reply = await verifier.generate(request(prompts[5], max_tokens=LONG))
        assert reply.tokens == right[tuple(prompts[5])] and missed(reply) == 0
        for drafter in (one, two):
            (opening,) = openings(drafter.commands)
            assert opening.asked > 4
            check(verifier.engine, [opening])


async def test_a_replica_that_is_frozen_is_left(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    script = knowing(right, lambda _, tokens: tokens)
    one, two = ScriptedDrafter(script), ScriptedDrafter(script)
    slow = {"patience_ms": 60.0, "max_misses": 2, "rest_ms": 600_000.0}
    async with (
        scripted(one) as first,
        scripted(two) as second,
        running(tiny, drafters=replicas(first, second), **slow) as verifier,
    ):
        await until(lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * 2)
        events = verifier.stream(request(prompts[0], max_tokens=LONG))
        reply = Reply()
        async for event in events:
            reply.take(event)
            if isinstance(event, SessionTokens) and not one.held and not two.held:
                continue
            if one.reading.is_set() and two.reading.is_set() and len(reply.tokens) > 20:
                (one if one.held else two).reading.clear()
        frozen, other = (two, one) if one.reading.is_set() else (one, two)
        assert reply.tokens == right[tuple(prompts[0])]
        assert accepted_by(other) > 50 and 1 <= missed(reply) < 20
        frozen.reading.set()


class Listed:
    """Scripted replicas that enter themselves."""

    def __init__(self, server: RedisServer, script: Script) -> None:
        self.config = RegistryConfig(
            kind="redis", url=server.url, namespace="both", lease_s=0.6, heartbeat_s=0.1
        )
        self.script = script

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[ScriptedDrafter]:
        """A replica that is listed; then withdrawn and stopped."""
        drafter = ScriptedDrafter(self.script)
        announcer = open_announcer(OutriderConfig(registry=self.config))
        async with scripted(drafter) as config:
            try:
                await announcer.start(Instance(Role.DRAFTER, f"127.0.0.1:{config.port}", "s", "one"))
                yield drafter
            finally:
                await announcer.close()

    @asynccontextmanager
    async def verifier(self, tiny: Path) -> AsyncIterator[Verifier]:
        """It has to find them."""
        drafters = {"s": DrafterConfig(method="prompt_lookup")}
        async with running(tiny, drafters=drafters, listed=self.config, wait=False) as verifier:
            yield verifier


async def test_replicas_come_and_go_without_a_restart(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    wanted = [list(right[tuple(p)][:24]) for p in prompts]
    with redis_server() as server:
        listed = Listed(server, knowing(right, lambda _, tokens: tokens))
        async with listed.verifier(tiny) as verifier, AsyncExitStack() as stack:
            # Nobody is there.
            assert verifier.replica.links.troubles == ("drafter s has no replica: the registry lists none",)
            reply = await verifier.generate(request(prompts[2]))
            assert reply.tokens == wanted[2] and drafts(reply) == 0
            # Two come, and then a third one.
            one = await stack.enter_async_context(listed.replica())
            two = await stack.enter_async_context(listed.replica())
            await ready(verifier, 2)
            assert verifier.replica.links.troubles == ()
            async with listed.replica() as three:
                await ready(verifier, 3)
                async with asyncio.timeout(60):
                    while not opened_on(three):
                        assert await verifier.generate_all([request(p) for p in prompts]) == wanted
            await ready(verifier, 2)
            assert opened_on(one) and opened_on(two)
            # All go.
            await stack.aclose()
            await ready(verifier, 0)
            assert len(verifier.replica.links) == 0
            await until(lambda: verifier.metric("outrider_drafter_link_state", drafter="s") == 0)
            reply = await verifier.generate(request(prompts[2]))
            assert reply.tokens == wanted[2] and drafts(reply) == 0
            # One is back.
            async with listed.replica() as back:
                await ready(verifier, 1)
                reply = await verifier.generate(request(prompts[2]))
                assert reply.tokens == wanted[2] and drafts(reply) > 0 and opened_on(back)


async def test_a_registry_that_is_away_takes_no_replica_away(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    with redis_server() as server:
        listed = Listed(server, knowing(right, lambda _, tokens: tokens))
        async with listed.verifier(tiny) as verifier, listed.replica() as drafter:
            await ready(verifier, 1)
            server.stop()
            await until(lambda: bool(verifier.replica.links.troubles))
            assert "is away" in verifier.replica.links.troubles[0]
            for _ in range(3):
                assert drafts(await verifier.generate(request(prompts[2]))) > 0
            server.start()
            await until(lambda: not verifier.replica.links.troubles)
            assert drafts(await verifier.generate(request(prompts[2]))) > 0
            assert drafter.streams == 1


async def test_a_replica_whose_lease_ran_out_is_used_while_its_link_stands(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    script = knowing(right, lambda _, tokens: tokens)
    with redis_server() as server:
        listed = Listed(server, script)
        async with listed.verifier(tiny) as verifier:
            async with AsyncExitStack() as stack:
                drafter = ScriptedDrafter(script)
                config = await stack.enter_async_context(scripted(drafter))
                announcer = open_announcer(OutriderConfig(registry=listed.config))
                await announcer.start(Instance(Role.DRAFTER, f"127.0.0.1:{config.port}", "s", "one"))
                await ready(verifier, 1)
                await announcer.close()  # withdrawn: as good as run out
                other = await stack.enter_async_context(listed.replica())
                await ready(verifier, 2)
                assert drafts(await verifier.generate(request(prompts[2]))) > 0
                assert drafter.streams == other.streams == 1
            await ready(verifier, 0)
            await until(lambda: len(verifier.replica.links) == 0)


async def test_real_drafters_that_stop_hand_their_sessions_over(
    tiny: Path, prompts: list[list[int]], right: dict[tuple[int, ...], list[int]]
) -> None:
    async with AsyncExitStack() as first, real_drafter(model=str(tiny)) as stays:
        goes = await first.enter_async_context(real_drafter(model=str(tiny)))
        async with running(tiny, drafters=replicas(stays, goes)) as verifier:
            await until(
                lambda: [r.status.value for r in verifier.replica.links.reports("s")] == ["ready"] * 2
            )
            running_all = [
                asyncio.create_task(verifier.generate(request(p, max_tokens=LONG))) for p in prompts
            ]
            await until(lambda: verifier.metric("outrider_drafter_rounds_asked_total", drafter="s") > 40)
            await first.aclose()
            replies = await asyncio.gather(*running_all)
            assert [reply.tokens for reply in replies] == list(right.values())
            assert sum(map(missed, replies)) == 0
            (trouble,) = verifier.replica.links.troubles
            assert f"127.0.0.1:{goes.port} is down (1 of 2 replicas are ready)" in trouble
