"""The drafting desk with several drafters: who is asked, what is told, what is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import Acceptance, SamplingParams, SpeculationParams, StopParams
from outrider.core.rounds import Proposal
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.drafts import DraftDesk
from outrider.verifying.features import FeatureFeed
from outrider.verifying.fusion.council import Council
from outrider.verifying.fusion.worth import Worth
from outrider.verifying.mailbox import Admit, LinkDown, LinkDraining, LinkUp, Outcome
from outrider.verifying.patience import Patience
from outrider.verifying.rounds import Settled
from outrider.verifying.session import DraftPhase, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, OpenDraft
from tests.unit.verifying.fake_rows import FakeRows

INFO = DrafterInfo(ModelInfo("draft"), "draft_model", (), 16, 8, "a")


class Listening(Council):
    """Asks whom it is told to, and remembers whether that was everybody."""

    def __init__(self) -> None:
        super().__init__(nodes=8, least=0.0)
        self.wanted: frozenset[str] | None = None
        self.everybody: list[bool] = []
        self.asked: list[set[str]] = []

    def choose(self, worth: Worth, waits: Mapping[str, float]) -> frozenset[str]:
        return frozenset(waits) if self.wanted is None else self.wanted & frozenset(waits)

    def learn(
        self,
        worth: Worth | None,
        asked: Mapping[str, Proposal | None],
        token_ids: Sequence[int],
        *,
        everybody: bool,
    ) -> dict[str, int]:
        self.everybody.append(everybody)
        self.asked.append(set(asked))
        return super().learn(worth, asked, token_ids, everybody=everybody)


class Desk:
    """Drafters a and b, and a session that drafts through both."""

    def __init__(self, *, max_tokens: int = 100, rule: Acceptance = Acceptance.COUPLED) -> None:
        self.council = Listening()
        feed = FeatureFeed(FakeRows().api, lambda *_: None)
        self.links = DrafterPool(
            {"a": 0, "b": 0},
            patience=lambda: Patience(limit_s=1.0, max_misses=2, rest_s=10.0),
            feed=feed,
            gone=lambda *_: None,
            useless=lambda *_: None,
        )
        self.desk = DraftDesk(
            self.links,
            vocab_size=100,
            max_nodes=8,
            feed=feed,
            council=self.council,
            dropped=lambda *_: None,
            resting=lambda *_: None,
        )
        for name in "ab":
            self.desk.hear(LinkUp(name, 1, INFO, name), [])
        self.record = SessionRecord(
            "s",
            (1, 2, 3),
            SamplingParams(),
            StopParams(max_tokens),
            SpeculationParams(acceptance=rule),
            epoch=4,
        )
        self.outcome = Outcome()

    def begin(self, now: float = 0.0) -> Session:
        drafting = self.desk.begin(Admit(self.record, (("a", 4), ("b", 4)), 8))
        session = Session.admitted(self.record, 1, drafting)
        self.desk.admit(session, now, self.outcome)
        return session

    def round(self, session: Session, *token_ids: int, now: float = 0.0) -> None:
        session.tokens.extend(token_ids)
        nodes = tuple(range(len(token_ids) - 1))
        self.desk.ask(session, Settled(token_ids, len(nodes), nodes), now, self.outcome)

    def propose(self, session: Session, name: str, *token_ids: int) -> None:
        proposal = Proposal("s", 4, len(session.tokens), TokenTree.chain(token_ids))
        self.desk.take(name, proposal, session, 0.0)

    def sent(self, name: str) -> list[object]:
        commands: list[object] = list(self.outcome.commands.pop((name, 1), ()))
        return commands


def test_a_drafter_whose_rest_is_over_is_opened_at_admission() -> None:
    desk = Desk()
    for _ in range(2):
        desk.links["b"].patience.miss(100.0)
    desk.begin(now=105.0)
    assert (len(desk.sent("a")), len(desk.sent("b"))) == (1, 0)
    desk.begin(now=111.0)
    assert (len(desk.sent("a")), len(desk.sent("b"))) == (1, 1)


@pytest.mark.parametrize(("max_tokens", "opened"), [(1, 0), (2, 0), (3, 1)])
def test_nobody_prefills_for_a_session_that_ends_before_drafts_count(max_tokens: int, opened: int) -> None:
    desk = Desk(max_tokens=max_tokens)
    session = desk.begin()
    assert [len(desk.sent(name)) for name in "ab"] == [opened] * 2
    desk.round(session, 7)
    assert [len(desk.sent(name)) for name in "ab"] == [opened] * 2


def test_a_merged_tree_keeps_to_the_sessions_share_of_the_step() -> None:
    desk = Desk()
    session = desk.begin()
    desk.round(session, 7)
    desk.propose(session, "a", 5, 6, 7)
    desk.propose(session, "b", 8, 9, 10)
    assert len(desk.desk.draft(session)) == 6
    desk.desk.share = 3
    assert len(desk.desk.draft(session)) == 3
    desk.desk.share = 0
    assert len(desk.desk.draft(session)) == 0


def test_asked_are_all_only_if_each_that_can_be_asked_was() -> None:
    desk = Desk()
    session = desk.begin()
    desk.desk.hear(LinkDown("b", 1), [session])
    desk.round(session, 7)  # asks a
    desk.desk.hear(LinkDown("a", 1), [session])
    desk.desk.hear(LinkUp("b", 2, INFO, "b"), [])
    desk.round(session, 7)
    assert desk.council.everybody == [False, False]
    desk.outcome = Outcome()
    desk.round(session, 7)
    desk.round(session, 7)
    assert desk.council.everybody == [False, False, False, True]


def test_one_that_was_not_asked_hears_of_the_rest_at_the_end() -> None:
    desk = Desk()
    session = desk.begin()
    desk.round(session, 7)
    desk.council.wanted = frozenset("b")
    desk.outcome = Outcome()
    desk.round(session, 8)
    desk.desk.close(session, desk.outcome)
    advance, close = desk.sent("a")
    assert isinstance(advance, AdvanceDraft) and isinstance(close, CloseDraft)
    assert (advance.base_len, advance.token_ids, advance.draft_length) == (4, (8,), 0)
    assert [type(command) for command in desk.sent("b")] == [AdvanceDraft, CloseDraft]
    desk.desk.close(session, desk.outcome)
    assert desk.sent("a") == []


def test_heads_hear_nothing_more_at_the_end() -> None:
    desk = Desk()
    desk.desk.hear(LinkUp("a", 1, replace(INFO, features=("last_hidden",)), "a"), [])
    session = desk.begin()
    session.tokens.append(7)
    desk.outcome = Outcome()
    desk.desk.close(session, desk.outcome)
    assert [type(command) for command in desk.sent("a")] == [CloseDraft]
    assert [type(command) for command in desk.sent("b")] == [AdvanceDraft, CloseDraft]


def test_a_lost_link_says_nothing_of_what_its_drafter_is_worth() -> None:
    desk = Desk()
    session = desk.begin()
    desk.round(session, 7)
    desk.desk.hear(LinkDown("b", 1), [session])
    desk.round(session, 7)
    assert desk.council.asked == [set(), {"a"}]
    desk.propose(session, "a", 5)
    desk.desk.hear(LinkDown("a", 1), [session])
    desk.round(session, 7)
    assert desk.council.asked[-1] == {"a"}  # it had answered before


def test_what_a_drafter_got_right_is_told_when_it_hears_of_it() -> None:
    desk = Desk()
    session = desk.begin()
    desk.round(session, 7)
    desk.propose(session, "a", 5, 6)
    desk.propose(session, "b", 9)
    desk.council.wanted = frozenset("b")
    desk.outcome = Outcome()
    desk.round(session, 5, 6, 8)
    desk.round(session, 8)
    assert desk.sent("a") == []
    desk.council.wanted = frozenset("a")
    desk.round(session, 8)
    (advance,) = desk.sent("a")
    assert isinstance(advance, AdvanceDraft)
    assert (advance.base_len, advance.token_ids, advance.accepted) == (4, (5, 6, 8, 8, 8), 2)
    desk.round(session, 8)
    (advance,) = desk.sent("a")
    assert isinstance(advance, AdvanceDraft) and (advance.base_len, advance.accepted) == (9, 0)


def test_one_that_was_lost_is_opened_first_and_asked_a_round_later() -> None:
    desk = Desk()
    session = desk.begin()
    desk.round(session, 7)
    desk.desk.hear(LinkDown("a", 1), [session])
    assert [own.name for own in session.drafting.waiting] == ["b"]
    desk.desk.hear(LinkUp("a", 1, INFO, "a"), [])
    desk.outcome = Outcome()
    desk.round(session, 7)
    (opened,) = desk.sent("a")
    assert isinstance(opened, OpenDraft) and (opened.draft_length, len(opened.token_ids)) == (0, 5)
    assert [own.name for own in session.drafting.waiting] == ["b"]
    desk.round(session, 7)
    (advance,) = desk.sent("a")
    assert isinstance(advance, AdvanceDraft) and (advance.base_len, advance.draft_length) == (5, 4)


def test_the_one_drafter_of_the_other_rules_is_not_one_about_to_stop() -> None:
    desk = Desk(rule=Acceptance.BLOCK)
    assert list(desk.begin().drafting.links) == ["a"]
    desk.desk.hear(LinkDraining("a", 1), [])
    session = desk.begin()
    assert list(session.drafting.links) == ["b"]
    assert session.drafting.links["b"].phase is DraftPhase.OPEN
