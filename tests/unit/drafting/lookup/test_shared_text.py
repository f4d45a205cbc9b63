"""Served text against a search of all that was added: exact, bounded, and never another tenant's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.lookup.continuation import LONGEST_MATCH, MOST_MATCHES
from outrider.drafting.lookup.shared_text import SharedText

GRAMS = (1, 2, 4)
DEPTH = 5
TENANTS = st.sampled_from(["", "a", "b"])
TEXT = st.lists(st.integers(0, 2), max_size=12)
PIECES = st.lists(st.tuples(TENANTS, TEXT, TEXT.filter(bool)), max_size=40)


class Everything:
    """All text ever added, searched from end to end."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.tokens: list[int] = []
        self.tenants: list[str] = []
        self.pieces: list[int] = []  # where the piece of each position starts; -1: not to be found

    def add(self, tenant: str, context: list[int], served: list[int]) -> None:
        context = context[-LONGEST_MATCH:]
        served = served[-(self.window - len(context) - 1) :]
        start = len(self.tokens) + 1
        self.tokens += [-1, *context, *served]
        self.tenants += [tenant] * (1 + len(context) + len(served))
        self.pieces += [-1] * (1 + len(context)) + [start] * len(served)

    def find(self, tenant: str, tail: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        end = len(self.tokens)
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for n in sorted(GRAMS, reverse=True):
            places = [
                at
                for at in range(end - 1, max(-1, end - self.window - 1), -1)
                if self.tenants[at] == tenant
                and self.pieces[at] >= 0
                and at - n >= self.pieces[at]
                and len(tail) >= n
                and self.tokens[at - n : at] == tail[-n:]
            ]
            for at in places[:MOST_MATCHES]:
                length = n
                oldest = max(0, end - self.window - LONGEST_MATCH)
                while (
                    length < min(LONGEST_MATCH, len(tail))
                    and at - length - 1 >= oldest
                    and self.tokens[at - length - 1] == tail[-length - 1]
                ):
                    length += 1
                stop = at
                while stop < end and stop < at + DEPTH and self.tokens[stop] >= 0:
                    stop += 1
                found.setdefault(at, (length, tuple(self.tokens[at:stop])))
            if len(found) >= MOST_MATCHES:
                break
        return list(found.values())


@given(PIECES, st.integers(30, 120), TENANTS, TEXT)
def test_finds_what_a_search_finds(
    pieces: list[tuple[str, list[int], list[int]]], window: int, asked: str, tail: list[int]
) -> None:
    text, everything = SharedText(GRAMS, window), Everything(window)
    for tenant, context, served in pieces:
        text.add(tenant, context, served)
        everything.add(tenant, context, served)
        for end in (tail, (context + served)[:-1]):
            found = [(one.length, one.token_ids) for one in text.find(asked, end, DEPTH)]
            assert found == everything.find(asked, end)


@given(PIECES)
def test_a_tenant_finds_what_it_would_find_alone(pieces: list[tuple[str, list[int], list[int]]]) -> None:
    everybody = SharedText(GRAMS, 4096)
    alone = {tenant: SharedText(GRAMS, 4096) for tenant in ("", "a", "b", "c")}
    for tenant, context, served in pieces:
        everybody.add(tenant, context, served)
        alone[tenant].add(tenant, context, served)
    for tenant, own in alone.items():
        for _, context, served in pieces:
            tail = context + served[:-1]
            assert everybody.find(tenant, tail, DEPTH) == own.find(tenant, tail, DEPTH)


def test_memory_is_bounded_whatever_is_added() -> None:
    window = 256
    text = SharedText(GRAMS, window)
    for number in range(5000):
        text.add(f"tenant {number}", [number] * 5, [number * 3 + step for step in range(7)])
    assert text.held == window
    assert text.tenants <= window // 8
    assert len(text._pieces) <= window // 8
    assert all(len(chain) <= window and len(chain._steps) == window for _, chain in text._chains)
    assert len(text._ring) == 2 * (window + LONGEST_MATCH)


def test_one_long_piece_leaves_its_end() -> None:
    text = SharedText(GRAMS, 64)
    text.add("a", [], list(range(1000)))
    assert text.find("a", [998], 3)[0].token_ids == (999,)
    assert text.find("a", [900], 3) == []
