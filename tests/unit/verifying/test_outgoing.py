"""Commands on their way to gRPC: split, counted, bounded."""

from __future__ import annotations

import pytest

from outrider.core.params import SamplingParams
from outrider.verifying import outgoing
from outrider.verifying.outgoing import Outgoing
from outrider.wire import convert
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, FeatureBlock, OpenDraft


def command(size: int, name: str = "s") -> AdvanceDraft:
    """Carries so many bytes."""
    blocks = (FeatureBlock("last_hidden", 0, size // 4, 2, bytes(size)),) if size else ()
    return AdvanceDraft(name, 1, 5, (), 0, 0, features=blocks)


async def test_a_step_is_split_into_messages_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_MESSAGE_BYTES", 100)
    out = Outgoing(lambda _: None)
    commands: list[DraftCommand] = [
        command(40, "a"),
        command(40, "b"),
        OpenDraft("c", 1, tuple(range(30)), SamplingParams(), 0),
        CloseDraft("d", 1),
        command(400, "e"),
        command(0, "f"),
    ]
    assert out.put(commands) and out.put([CloseDraft("g", 1)])
    got = [await anext(out) for _ in range(5)]
    names = [[message.session_id for message in request.commands] for request in got]
    assert names == [["a", "b"], ["c"], ["d", "e"], ["f"], ["g"]]
    sent = [convert.command_from_proto(message) for request in got for message in request.commands]
    assert sent == [*commands, CloseDraft("g", 1)]


async def test_what_went_out_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_TOLD_BYTES", 100)
    told: list[int] = []
    out = Outgoing(told.append)
    for size in (60, 0, 60, 200, 40):
        assert out.put([command(size)])
    seen = []
    for _ in range(5):
        await anext(out)
        seen.append(list(told))
    # A message has gone out once the next one is asked for.
    assert seen == [[], [], [], [120], [120, 200]]


async def test_too_much_that_waits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_MAX_PENDING", 2)
    out = Outgoing(lambda _: None)
    assert out.put([command(0)]) and out.put([command(0)])
    assert not out.put([command(0)])
