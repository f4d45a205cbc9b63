"""Whatever a drafter says, the tokens are the same, and no other session notices."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import SpeculationParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.wire.messages import DraftEvent, Draining, Stale
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.verifying.harness import OFF, request, running, sampled
from tests.integration.verifying.scripted import CloseStreamError, Held, ScriptedDrafter, scripted

Answers = Iterable[DraftEvent | pb.DraftEvent]
RNG = random.Random(3)


def wrong(held: Held) -> list[int]:
    return [RNG.randrange(512) for _ in range(held.wanted)]


def proto(held: Held, ids: list[int], parents: list[int]) -> pb.DraftEvent:
    """A proposal as it stands on the wire, so that it may say what our own types would not."""
    event = pb.DraftEvent(session_id=held.session_id, epoch=held.epoch)
    event.proposal.base_len = len(held.tokens)
    event.proposal.tree.token_ids.extend(ids)
    event.proposal.tree.parents.extend(parents)
    return event


def garbage(held: Held) -> Answers:
    yield pb.DraftEvent()
    yield pb.DraftEvent(session_id="{no such}", epoch=1, proposal=pb.DraftProposal())
    yield proto(held, [1, 2], [0, 1])
    yield proto(held, [1, 2], [-1])
    yield proto(held, [2**31, 7], [-1, 0])
    yield proto(held, [7, 7], [-1, -1])
    yield pb.DraftEvent(session_id=held.session_id, epoch=held.epoch, stale=pb.StaleSession(reason=99))  # type: ignore[arg-type]
    yield pb.DraftEvent(session_id=held.session_id, epoch=held.epoch)


def beyond_the_vocabulary(held: Held) -> Answers:
    yield held.propose([511, 512, 600])


def duplicates(held: Held) -> Answers:
    for _ in range(3):
        yield held.propose(wrong(held))


def of_another_length(held: Held) -> Answers:
    for change in (-3, -1, 1, 2):
        yield held.propose(wrong(held), base_len=max(0, len(held.tokens) + change))


def of_another_epoch(held: Held) -> Answers:
    yield held.propose(wrong(held), epoch=held.epoch + 1)


def of_another_session(held: Held) -> Answers:
    for name in [*DRAFTERS["held"].held, "nobody"]:
        if name != held.session_id:
            yield held.propose(wrong(held), session_id=name)


def oversized(held: Held) -> Answers:
    yield held.propose([RNG.randrange(512) for _ in range(RNG.choice([40, 500, 3000]))])


def longer_than_asked(held: Held) -> Answers:
    yield held.propose([RNG.randrange(512) for _ in range(20)])


def empty(held: Held) -> Answers:
    yield held.propose([])


def wrong_trees(held: Held) -> Answers:
    yield held.propose((), tree=TokenTree((5, 6, 7, 8), (-1, -1, 0, 1)))


def silence(held: Held) -> Answers:
    return ()


def stale_at_random(held: Held) -> Answers:
    reason = RNG.choice([StaleReason.UNKNOWN, StaleReason.DIVERGED, StaleReason.FULL, StaleReason.INVALID])
    if RNG.random() < 0.5:
        yield Stale(held.session_id, held.epoch, reason)
    else:
        yield held.propose(wrong(held))


def closing_at_random(held: Held) -> Answers:
    if RNG.random() < 0.2:
        raise CloseStreamError
    yield held.propose(wrong(held))


def flood(held: Held) -> Answers:
    for _ in range(500):
        yield held.propose(wrong(held))


def draining_again_and_again(held: Held) -> Answers:
    for _ in range(500):
        yield Draining(1000)


def everything_at_once(held: Held) -> Answers:
    for script in (of_another_epoch, of_another_length, garbage, oversized, duplicates):
        yield from script(held)


DRAFTERS: dict[str, ScriptedDrafter] = {}
SCRIPTS = [
    garbage,
    beyond_the_vocabulary,
    duplicates,
    of_another_length,
    of_another_epoch,
    of_another_session,
    oversized,
    longer_than_asked,
    empty,
    wrong_trees,
    silence,
    stale_at_random,
    closing_at_random,
    flood,
    draining_again_and_again,
    everything_at_once,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_a_hostile_drafter_changes_nothing(
    tiny: Path, prompts: list[list[int]], script: object
) -> None:
    drafter = DRAFTERS["held"] = ScriptedDrafter(script)  # type: ignore[arg-type]
    batch = [(prompt, sampled(i)) for i, prompt in enumerate(prompts[:4])]
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, patience_ms=20.0, rest_ms=50.0) as verifier,
    ):
        off = await verifier.generate_all([request(p, sampling=s, speculation=OFF) for p, s in batch])
        assert await verifier.generate_all([request(p, sampling=s) for p, s in batch]) == off
        (after,) = await verifier.generate_all([request(batch[0][0], sampling=batch[0][1])])
        assert after == off[0]
        assert verifier.used == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (garbage, "malformed"),
        (beyond_the_vocabulary, "malformed"),
        (of_another_epoch, "epoch"),
        (of_another_length, "base_len"),
        (oversized, "oversized"),
        (duplicates, "duplicate"),
        (flood, "flood"),
        (draining_again_and_again, "flood"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_dropped_proposals_are_counted_by_reason(
    tiny: Path, prompts: list[list[int]], script: object, reason: str
) -> None:
    drafter = ScriptedDrafter(script)  # type: ignore[arg-type]
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, patience_ms=200.0) as verifier,
    ):
        await verifier.generate(request(prompts[3]))
        dropped = verifier.metric("outrider_proposals_dropped_total", drafter="s", reason=reason)
    assert dropped > 0


async def test_one_hostile_drafter_does_not_touch_the_sessions_of_another(
    tiny: Path, prompts: list[list[int]]
) -> None:
    def about_all(held: Held) -> Iterable[Proposal]:
        for other in list(good.held.values()):
            yield Proposal(other.session_id, other.epoch, len(other.tokens), TokenTree.chain([1, 2, 3]))

    good = ScriptedDrafter(lambda held: [held.propose([9, 9])])
    info = DrafterInfo(ModelInfo("bad"), "scripted", (), 64, 64, "two")
    bad = ScriptedDrafter(about_all, info=info)

    async with (
        scripted(good) as one,
        scripted(bad) as two,
        running(tiny, drafters={"good": one, "bad": two}, patience_ms=50.0) as verifier,
    ):
        off = await verifier.generate_all([request(p, speculation=OFF) for p in prompts[:4]])
        got = await verifier.generate_all(
            [
                request(p, speculation=SpeculationParams(drafter="bad" if i % 2 else "good"))
                for i, p in enumerate(prompts[:4])
            ]
        )
        assert got == off
