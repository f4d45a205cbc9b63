"""Which rows go to which drafter, in what parts, and how much may be on its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import SamplingParams
from outrider.verifying import features
from outrider.verifying.features import NOTHING, FeatureFeed, Shipment, spread
from outrider.wire.messages import AdvanceDraft, FeatureBlock, OpenDraft
from tests.unit.verifying.fake_rows import WIDTH, FakeRows, FakeSequence

INFO = DrafterInfo(ModelInfo("head"), "eagle", ("hidden_1", "last_hidden"), 16, 8, "a")
ROW = 2 * WIDTH * 2


class Bench:
    """A feed with drafter "d" linked and session "s" open there."""

    def __init__(self, info: DrafterInfo = INFO) -> None:
        self.rows = FakeRows()
        self.sent: list[tuple[str, int]] = []
        self.feed = FeatureFeed(self.rows.api, lambda name, size: self.sent.append((name, size)))
        self.feed.link_up("d", "d", info)
        self.feed.start("d", "s")

    def take(self, kv_len: int, nodes: int = 0) -> Shipment:
        return self.feed.take("d", "s", FakeSequence(kv_len), range(nodes))


def ranges(shipment: Shipment) -> list[tuple[int, int]]:
    """First row and end of each part; its blocks agree, and hold what they say."""
    found = []
    for part in shipment.parts:
        assert [block.name for block in part] == ["hidden_1", "last_hidden"]
        ((first, rows),) = {(block.first_position, block.rows) for block in part}
        assert all(len(b.data) == 2 * rows * WIDTH and b.columns == WIDTH for b in part)
        found.append((first, first + rows))
    return found


def test_rows_go_on_where_the_last_ones_ended() -> None:
    bench = Bench()
    assert bench.take(0) == NOTHING
    assert ranges(bench.take(5)) == [(0, 5)]
    assert bench.take(5) == NOTHING
    assert ranges(bench.take(5, nodes=3)) == [(5, 8)]
    assert bench.take(8) == NOTHING
    assert bench.take(2) == NOTHING  # it gave way and is recomputed
    assert ranges(bench.take(9)) == [(8, 9)]
    assert bench.sent == [("d", 5 * ROW), ("d", 3 * ROW), ("d", ROW)]


def test_an_opening_starts_over_and_so_does_a_link() -> None:
    bench = Bench()
    bench.take(5)
    bench.feed.start("d", "s")
    assert ranges(bench.take(6)) == [(0, 6)]
    bench.feed.forget("d", "s")
    bench.feed.forget("d", "s")
    bench.feed.link_up("d", "d", INFO)
    bench.feed.start("d", "s")
    assert ranges(bench.take(6)) == [(0, 6)]


def test_who_asks_for_nothing_costs_nothing() -> None:
    bench = Bench(replace(INFO, features=()))
    assert bench.rows.kept == []
    assert bench.take(5, 2) == NOTHING
    assert bench.feed.take("unknown", "s", FakeSequence(3)) == NOTHING
    assert bench.feed.take("d", "s", None) == NOTHING


def test_what_a_replica_that_is_gone_needed_is_kept_until_the_next_one_of_its_drafter_says_its_own() -> None:
    bench = Bench()
    bench.feed.drop("d")
    bench.feed.drop("unknown")
    bench.feed.link_up("e", "other", replace(INFO, features=("hidden_2",)))
    assert bench.rows.kept[-1] == {"hidden_1", "hidden_2", "last_hidden"}
    bench.feed.link_up("d2", "d", replace(INFO, features=("hidden_0",)))
    assert bench.rows.kept[-1] == {"hidden_0", "hidden_2"}
    bench.feed.start("d2", "s")
    assert bench.feed.take("d2", "s", FakeSequence(3)).complete
    assert bench.take(3) == NOTHING


def test_replicas_have_their_own_rows_and_count_for_one_drafter() -> None:
    bench = Bench()
    bench.feed.link_up("d2", "d", INFO)
    bench.feed.start("d2", "s")
    assert ranges(bench.take(5)) == [(0, 5)]
    assert ranges(bench.feed.take("d2", "s", FakeSequence(6))) == [(0, 6)]
    assert bench.sent == [("d", 5 * ROW), ("d", 6 * ROW)]


def test_what_is_kept_is_what_all_need_together() -> None:
    bench = Bench()
    bench.feed.link_up("e", "e", replace(INFO, features=("hidden_2", "hidden_2", "hidden_1")))
    bench.feed.link_up("d", "d", replace(INFO, features=()))
    bench.feed.link_up("e", "e", replace(INFO, features=()))
    assert bench.rows.kept == [
        {"hidden_1", "last_hidden"},
        {"hidden_1", "hidden_2", "last_hidden"},
        {"hidden_1", "hidden_2"},
        set(),
    ]


@pytest.mark.parametrize("why", ["memory", "too many"])
def test_a_drafter_whose_features_cannot_be_kept_gets_none_and_harms_nobody(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    names = ("hidden_2",) if why == "memory" else tuple(f"hidden_{n}" for n in range(17))
    bench.rows.full = why == "memory"
    bench.feed.link_up("e", "e", replace(INFO, features=names))
    assert "drafter e gets no features" in caplog.text
    bench.feed.start("e", "s")
    assert bench.feed.take("e", "s", FakeSequence(5)) == NOTHING
    assert ranges(bench.take(5)) == [(0, 5)]


def test_large_shipments_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_PART_BYTES", 3 * ROW + 1)
    bench = Bench()
    assert ranges(bench.take(8)) == [(0, 3), (3, 6), (6, 8)]
    monkeypatch.setattr(features, "_PART_BYTES", 1)
    assert ranges(bench.take(10)) == [(8, 9), (9, 10)]


def test_no_more_is_on_its_way_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_CREDIT_BYTES", 4 * ROW)
    bench = Bench()
    first = bench.take(9)
    assert ranges(first) == [(0, 4)] and not first.complete
    assert bench.take(9) == Shipment(complete=False)
    bench.feed.took("d", 2 * ROW + 1)
    second = bench.take(9)
    assert ranges(second) == [(4, 6)] and not second.complete
    bench.feed.took("d", 99 * ROW)
    third = bench.take(9)
    assert ranges(third) == [(6, 9)] and third.complete
    bench.feed.took("gone", 5)


def test_a_drafter_gets_no_rows_of_tokens_that_it_was_not_told_of() -> None:
    bench = Bench()
    for known, want in ((4, [(0, 3)]), (4, []), (9, [(3, 8)]), (99, [(8, 20)])):
        assert ranges(bench.feed.take_chunk("d", "s", FakeSequence(20), known)) == want


def test_the_last_row_only() -> None:
    bench = Bench(replace(INFO, last_feature_only=True))
    assert bench.feed.take_chunk("d", "s", FakeSequence(5), 9) == NOTHING
    assert bench.take(0) == NOTHING
    assert ranges(bench.take(5, nodes=2)) == [(6, 7)]
    assert ranges(bench.take(7)) == [(6, 7)]


PARTS = tuple((FeatureBlock("last_hidden", first, 1, 1, b"12"),) for first in range(3))
ADVANCE = AdvanceDraft("s", 3, 10, (1, 2), 1, 4, traceparent="t", patience_us=9, draft_nodes=7)
OPEN = OpenDraft("s", 3, (5, 6, 7), SamplingParams(), 4, traceparent="t", patience_us=9, draft_nodes=7)


@pytest.mark.parametrize("command", [ADVANCE, OPEN])
def test_one_part_or_none_travels_with_the_command(command: AdvanceDraft | OpenDraft) -> None:
    assert spread(command, NOTHING) == [command]
    assert spread(command, Shipment(PARTS[:1])) == [replace(command, features=PARTS[0])]


@pytest.mark.parametrize(("command", "length"), [(ADVANCE, 12), (OPEN, 3)])
def test_the_last_of_several_parts_asks(command: AdvanceDraft | OpenDraft, length: int) -> None:
    first, middle, last = spread(command, Shipment(PARTS))
    assert first == replace(
        command, features=PARTS[0], draft_length=0, draft_nodes=0, traceparent="", patience_us=0
    )
    assert middle == AdvanceDraft("s", 3, length, (), 0, 0, features=PARTS[1])
    assert last == AdvanceDraft(
        "s", 3, length, (), 0, 4, features=PARTS[2], traceparent="t", patience_us=9, draft_nodes=7
    )
