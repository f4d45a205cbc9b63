"""Feature blocks that no verifier should send: they cost their own session at most, on a real drafter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from grpc import aio

from outrider.config.schema import DrafterConfig
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.wire.convert.drafter import command_to_proto
from outrider.wire.messages import AdvanceDraft, CloseDraft, FeatureBlock, OpenDraft, Stale
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.drafting.conftest import Link, RunningDrafter, running
from tests.tiny_eagle import make_tiny_eagle
from tests.tiny_models import make_tiny

HIDDEN, LENGTH = 64, 40
NAMES = ("hidden_2", "hidden_4", "hidden_5")
TEXT = tuple(range(100, 100 + LENGTH))
PARAMS = SamplingParams(temperature=0.0)
ROWS = torch.randn(len(NAMES), LENGTH, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()


def blocks(start: int, stop: int) -> tuple[FeatureBlock, ...]:
    return tuple(
        FeatureBlock(name, start, stop - start, HIDDEN, rows[start:stop].view(torch.int16).numpy().tobytes())
        for name, rows in zip(NAMES, ROWS, strict=True)
    )


def opened(name: str, length: int = 0, features: Sequence[FeatureBlock] = ()) -> OpenDraft:
    return OpenDraft(name, 1, TEXT, PARAMS, length, features=tuple(features), prompt_len=LENGTH)


def carrying(*features: common_pb2.FeatureBlock) -> pb.DraftCommand:
    """An advance for session "bad" with blocks as they are."""
    message = command_to_proto(AdvanceDraft("bad", 1, LENGTH, (), 0, 2))
    message.advance.features.extend(features)
    return message


def raw(name: str, first: int, shape: Sequence[int], data: bytes) -> common_pb2.FeatureBlock:
    return common_pb2.FeatureBlock(name=name, first_position=first, shape=shape, data=data)


ROW = bytes(2 * HIDDEN)
BAD = {
    "unknown name": raw("hidden_3", 10, [1, HIDDEN], ROW),
    "no name": raw("", 10, [1, HIDDEN], ROW),
    "endless name": raw("x" * 100_000, 10, [1, HIDDEN], ROW),
    "gap": raw("hidden_2", 11, [1, HIDDEN], ROW),
    "again": raw("hidden_2", 9, [1, HIDDEN], ROW),
    "narrow": raw("hidden_2", 10, [1, 32], ROW[:64]),
    "wide": raw("hidden_2", 10, [1, 128], ROW * 2),
    "past the tokens": raw("hidden_2", 10, [30, HIDDEN], ROW * 30),
    "far away": raw("hidden_2", 2**32 - 1, [1, HIDDEN], ROW),
    "short data": raw("hidden_2", 10, [2, HIDDEN], ROW),
    "long data": raw("hidden_2", 10, [1, HIDDEN], ROW * 2),
    "odd data": raw("hidden_2", 10, [1, HIDDEN], ROW[:-1]),
    "no shape": raw("hidden_2", 10, [], ROW),
    "three dimensions": raw("hidden_2", 10, [1, 1, HIDDEN], ROW),
    "endless shape": raw("hidden_2", 10, [1] * 10_000, ROW),
    "no rows": raw("hidden_2", 10, [0, HIDDEN], b""),
    "rows of nothing": raw("hidden_2", 10, [2**32 - 1, 0], b""),
    "a product that overflows": raw("hidden_2", 10, [2**31, 2], b""),
    "not a number": raw("hidden_2", 10, [1, HIDDEN], b"\xc0\x7f" * HIDDEN),
    "infinite": raw("hidden_2", 10, [1, HIDDEN], b"\x80\xff" * HIDDEN),
}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target = make_tiny("llama", tmp_path_factory.mktemp("target"), layers=8)
    return target, make_tiny_eagle("eagle3", tmp_path_factory.mktemp("head"), columns=300)


async def check_alive(link: Link, want: Proposal, name: str) -> None:
    """A well-behaved session of the same stream gets what it always gets."""
    got = await link.ask(opened(name, 2, blocks(0, LENGTH - 1)))
    assert isinstance(got, Proposal) and got.session_id == name and got.tree == want.tree
    await link.send(CloseDraft(name, 1))


async def test_bad_blocks_cost_their_session_and_no_other(head: tuple[Path, Path]) -> None:
    config = DrafterConfig(port=0, method="eagle", model=str(head[1]), dtype="float32", pool_tokens=4096)
    async with running(config, target=str(head[0])) as drafter, drafter.link() as link:
        want = await link.ask(opened("good", 2, blocks(0, LENGTH - 1)))
        assert isinstance(want, Proposal) and len(want.tree) == 2
        for what, block in BAD.items():
            await link.send(opened("bad", 0, blocks(0, 10)), carrying(block))
            stale = await link.next()
            assert isinstance(stale, Stale), what
            assert (stale.session_id, stale.reason) == ("bad", StaleReason.INVALID), what
            assert stale.detail and len(stale.detail) < 1100, what
        await check_alive(link, want, "other")
        # In an Open, and more blocks than there can be features.
        many = [replace(blocks(0, 1)[0], first_position=i) for i in range(17)]
        for features in ([replace(blocks(0, 1)[0], name="last_hidden")], many):
            stale = await link.ask(opened("bad", 2, features))
            assert isinstance(stale, Stale) and stale.reason is StaleReason.INVALID
        # The session may be opened again, with blocks that are right.
        await check_alive(link, want, "bad")
        again = await link.ask(AdvanceDraft("good", 1, LENGTH, (7,), 0, 2))
        assert isinstance(again, Proposal)


async def test_a_message_that_is_too_large_ends_its_stream_only(head: tuple[Path, Path]) -> None:
    config = DrafterConfig(port=0, method="eagle", model=str(head[1]), dtype="float32", pool_tokens=4096)
    async with running(config, target=str(head[0])) as drafter, drafter.link() as other:
        want = await other.ask(opened("good", 2, blocks(0, LENGTH - 1)))
        assert isinstance(want, Proposal)
        await _flood(drafter)
        await check_alive(other, want, "still")


async def _flood(drafter: RunningDrafter) -> None:
    huge = raw("hidden_2", 0, [2**19, HIDDEN], bytes(2**20 * HIDDEN))
    options = [("grpc.max_send_message_length", -1)]
    async with aio.insecure_channel(drafter.address, options=options) as channel:
        call = channel.stream_stream(
            "/outrider.v1.Drafter/Draft",
            request_serializer=pb.DraftRequest.SerializeToString,
            response_deserializer=pb.DraftResponse.FromString,
        )()
        await call.write(pb.DraftRequest(commands=[carrying(huge)]))
        with pytest.raises(aio.AioRpcError) as caught:
            while await call.read() is not aio.EOF:
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_drafter_that_needs_none_ignores_them(
    start: Callable[..., Awaitable[RunningDrafter]],
) -> None:
    drafter = await start(method="prompt_lookup")
    async with drafter.link() as link:
        text = replace(opened("s", 2, blocks(0, 9)), token_ids=(5, 6, 7, 8, 5, 6), prompt_len=6)
        proposal = await link.ask(text)
        assert isinstance(proposal, Proposal) and proposal.tree.token_ids == (7, 8)
