"""Suffix decoding behind the scheduler: who finds whose text, and what it costs."""

from __future__ import annotations

import time

import pytest

from outrider.core.params import Acceptance, SamplingParams
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.continuation import LONGEST_MATCH
from outrider.drafting.lookup.method import MOST_PIECES, SHARED_AT_ONCE, TextLookup
from outrider.drafting.lookup.suffix import suffix_decoding
from outrider.drafting.scheduler import DraftScheduler
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, OpenDraft

GREEDY = SamplingParams(temperature=0.0)
TEXT = tuple(range(10, 40))


class Drafter:
    """A scheduler over one suffix method."""

    def __init__(self, *, share: bool = True, max_tokens: int = 4096, max_sessions: int = 64) -> None:
        self.method: TextLookup = suffix_decoding(
            max_tokens=max_tokens, share=share, shape=TreeShape((), 4), tree_nodes=8
        )
        self.scheduler = DraftScheduler(self.method, max_sessions=max_sessions, max_draft_tokens=16)

    def put(self, command: DraftCommand) -> TokenTree | None:
        """The proposal that answers it, if one does."""
        self.scheduler.apply(1, command, time.perf_counter_ns())
        while self.scheduler.has_work:
            self.scheduler.step()
        answers = [one.event for one in self.scheduler.take().answers]
        return next((one.tree for one in answers if isinstance(one, Proposal)), None)

    def serve(self, session_id: str, tenant: str, prompt: tuple[int, ...], text: tuple[int, ...]) -> None:
        """A whole session: opened, `text` generated in rounds, closed."""
        self.put(OpenDraft(session_id, 1, prompt, GREEDY, 4, tenant=tenant, prompt_len=len(prompt)))
        for start in range(0, len(text), 5):
            self.put(AdvanceDraft(session_id, 1, len(prompt) + start, text[start : start + 5], 0, 4))
        self.put(CloseDraft(session_id, 1))

    def ask(
        self,
        tenant: str,
        tokens: tuple[int, ...],
        *,
        acceptance: Acceptance = Acceptance.COUPLED,
        nodes: int = 0,
    ) -> TokenTree:
        """What is proposed to a new session that stands at `tokens`."""
        command = OpenDraft(
            "asking", 1, tokens, GREEDY, 4, tenant=tenant, acceptance=acceptance, draft_nodes=nodes
        )
        tree = self.put(command)
        assert tree is not None
        self.put(CloseDraft("asking", 1))
        return tree


@pytest.mark.parametrize("tenant", ["", "a"])
def test_served_text_is_proposed_to_the_same_tenant_only(tenant: str) -> None:
    drafter = Drafter()
    drafter.serve("s", tenant, (1, 2, 3), TEXT)
    for other in {"", "a", "b"} - {tenant}:
        assert len(drafter.ask(other, (7, *TEXT[:9]))) == 0
    found = drafter.ask(tenant, (7, *TEXT[:9]))
    assert found.token_ids == TEXT[9:13]
    assert found.is_chain and len(found.confidences) == 4


def test_a_prompt_is_not_served_text() -> None:
    drafter = Drafter()
    drafter.serve("s", "a", TEXT, (1, 2, 3))
    assert len(drafter.ask("a", (7, *TEXT[:9]))) == 0
    assert drafter.ask("a", (7, *TEXT[-4:])).token_ids == (1, 2, 3)  # but it leads to what was served


def test_without_opting_in_nothing_is_kept() -> None:
    drafter = Drafter(share=False)
    drafter.serve("s", "", (1, 2, 3), TEXT)
    assert len(drafter.ask("", (7, *TEXT[:9]))) == 0
    assert drafter.ask("", (*TEXT, *TEXT[:9])).token_ids == TEXT[9:13]


@pytest.mark.parametrize("rule", [Acceptance.TOKEN, Acceptance.BLOCK])
def test_by_other_rules_only_the_own_text_counts(rule: Acceptance) -> None:
    drafter = Drafter()
    drafter.serve("s", "", (1, 2, 3), TEXT)
    assert len(drafter.ask("", (7, *TEXT[:9]), acceptance=rule)) == 0
    own = drafter.ask("", (*TEXT, *TEXT[:9]), acceptance=rule)
    assert own.token_ids == TEXT[9:13] and not own.draft_probs


def test_different_continuations_are_branches() -> None:
    drafter = Drafter()
    drafter.serve("s", "", (1,), (*TEXT[:6], 50, 51, 52))
    drafter.serve("t", "", (2,), (*TEXT[:6], 60, 61, 62))
    tree = drafter.ask("", (3, *TEXT[:6]), nodes=8)
    assert sorted(tree.token_ids[:2]) == [50, 60] and tree.parents[:2] == (-1, -1)
    assert drafter.ask("", (3, *TEXT[:6])).is_chain


def test_running_sessions_share_as_they_grow() -> None:
    drafter = Drafter()
    text = tuple(range(100, 100 + SHARED_AT_ONCE))
    drafter.put(OpenDraft("s", 1, (1, 2), GREEDY, 4))
    drafter.put(AdvanceDraft("s", 1, 2, text, 0, 4))
    assert drafter.ask("", text[:8]).token_ids == text[8:12]


def test_what_is_opened_again_is_not_entered_twice() -> None:
    drafter = Drafter()
    drafter.serve("s", "", (1, 2, 3), TEXT)
    drafter.ask("", (1,))  # a step enters what waits
    shared = drafter.method._shared
    assert shared is not None
    held = shared.held
    assert held > 0
    drafter.put(OpenDraft("s", 2, (1, 2, 3, *TEXT), GREEDY, 4, prompt_len=3))
    drafter.put(CloseDraft("s", 2))
    drafter.ask("", (1,))
    assert shared.held == held


def test_memory_is_bounded_over_many_sessions_and_tenants() -> None:
    drafter = Drafter(max_tokens=2048, max_sessions=8)
    for number in range(300):
        drafter.serve(f"s{number}", f"tenant {number % 50}", (number,), tuple(range(number, number + 60)))
    shared = drafter.method._shared
    assert shared is not None
    assert shared.held == 2048 and shared.tenants <= 50
    assert drafter.method.usage == 0 and not drafter.method._lookups
    # The last one is still found, the first one is not.
    assert drafter.ask("tenant 49", tuple(range(300, 310))).token_ids[0] == 310
    assert len(drafter.ask("tenant 0", tuple(range(2, 12)))) == 0


def test_many_sessions_that_end_at_once_are_entered_step_by_step() -> None:
    drafter = Drafter(max_sessions=1000, max_tokens=20_000)
    for number in range(2 * MOST_PIECES):
        drafter.put(OpenDraft(f"s{number}", 1, (number,), GREEDY, 4))
        drafter.put(AdvanceDraft(f"s{number}", 1, 1, tuple(range(number, number + 20)), 0, 4))
    drafter.scheduler.drop_stream(1)
    shared = drafter.method._shared
    assert shared is not None and shared.held == 0 and len(drafter.method._pieces) == MOST_PIECES
    drafter.ask("", (1,))
    assert 0 < shared.held <= 2 * SHARED_AT_ONCE + 2 * LONGEST_MATCH
    for _ in range(MOST_PIECES):
        drafter.ask("", (1,))
    assert not drafter.method._pieces
    last = 2 * MOST_PIECES - 1
    assert drafter.ask("", tuple(range(last, last + 9))).token_ids == tuple(range(last + 9, last + 13))


def test_a_session_dropped_to_make_room_leaves_its_text() -> None:
    drafter = Drafter(max_sessions=1)
    drafter.put(OpenDraft("s", 1, (1, 2), GREEDY, 4))
    drafter.put(AdvanceDraft("s", 1, 2, TEXT, 0, 4))
    assert drafter.ask("", (7, *TEXT[:9])).token_ids == TEXT[9:13]
