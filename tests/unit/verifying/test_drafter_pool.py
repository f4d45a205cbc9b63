"""Sessions and the replicas of their drafter: where they are opened, and when they move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import SamplingParams, StopParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.drafts import DraftDesk
from outrider.verifying.features import FeatureFeed
from outrider.verifying.fusion.council import Council
from outrider.verifying.fusion.credit import Credit
from outrider.verifying.link_state import ALARM_TOKENS
from outrider.verifying.mailbox import (
    Admit,
    LinkDown,
    LinkDraining,
    LinkGone,
    LinkLoad,
    LinkNews,
    LinkUp,
    Outcome,
)
from outrider.verifying.patience import Patience
from outrider.verifying.rounds import Settled
from outrider.verifying.session import DraftPhase, LinkDrafting, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, DrafterLoad, OpenDraft, Stale
from tests.unit.verifying.fake_rows import FakeRows

INFO = DrafterInfo(ModelInfo("draft", vocab_size=100), "draft_model", (), 16, 8, "a")
GENERATIONS = {"x": 1, "y": 2, "z": 3}


class Desk:
    """Replicas x and y of drafter d, and sessions that draft through it."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []
        self.useless: list[tuple[str, str, bool]] = []
        self.dropped: list[tuple[str, str]] = []
        self.sessions: list[Session] = []
        self.outcome = Outcome()
        feed = FeatureFeed(FakeRows().api, lambda *_: None)
        self.pool = DrafterPool(
            {"d": 0},
            patience=lambda: Patience(limit_s=1.0, max_misses=1, rest_s=10.0),
            feed=feed,
            gone=lambda *names: self.gone.append(names),
            useless=lambda *news: self.useless.append(news),
            rng=random.Random(0),
        )
        self.desk = DraftDesk(
            self.pool,
            vocab_size=100,
            max_nodes=8,
            feed=feed,
            council=Council(nodes=8, least=0.0),
            dropped=lambda *names: self.dropped.append(names),
            resting=lambda *_: None,
        )
        self.up("x")
        self.up("y")

    def up(self, link: str, info: DrafterInfo = INFO) -> None:
        self.hear(LinkUp(link, GENERATIONS[link], info, "d"))

    def hear(self, news: LinkNews) -> None:
        self.desk.hear(news, self.sessions)

    def begin(self, now: float = 0.0) -> Session:
        """A session after its first round, which asked."""
        record = SessionRecord(
            f"s{len(self.sessions)}", (1, 2, 3), SamplingParams(), StopParams(100), epoch=4
        )
        session = Session.admitted(record, 1, self.desk.begin(Admit(record, (("d", 4),), 8)))
        self.sessions.append(session)
        self.desk.admit(session, now, self.outcome)
        self.round(session, now)
        self.outcome = Outcome()
        return session

    def round(self, session: Session, now: float = 0.0) -> dict[str, list[object]]:
        """One more token; what was sent, by link."""
        session.tokens.append(7)
        self.desk.ask(session, Settled((7,), 0, ()), now, self.outcome)
        outcome, self.outcome = self.outcome, Outcome()
        assert all(GENERATIONS[link] == generation for link, generation in outcome.commands)
        return {link: list(commands) for (link, _), commands in outcome.commands.items()}

    def propose(self, session: Session, link: str) -> None:
        proposal = Proposal(session.session_id, 4, len(session.tokens), TokenTree.chain([5, 6]))
        self.desk.take(link, proposal, session, 0.0)


def own_of(session: Session) -> LinkDrafting:
    return session.drafting.links["d"]


def other(link: str) -> str:
    return "y" if link == "x" else "x"


def kinds(sent: dict[str, list[object]]) -> dict[str, list[type]]:
    return {link: [type(command) for command in commands] for link, commands in sent.items()}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_sessions_spread_over_replicas_and_stay_where_they_are(desk: Desk) -> None:
    sessions = [desk.begin() for _ in range(4)]
    links = [own_of(session).link for session in sessions]
    assert sorted(links) == ["x", "x", "y", "y"]
    desk.up("z")
    for session, link in zip(sessions, links, strict=True):
        assert kinds(desk.round(session)) == {link: [AdvanceDraft]}
    assert "z" in {own_of(desk.begin()).link for _ in range(8)}


def test_when_a_link_is_lost_its_sessions_are_opened_on_another_one_and_asked_at_once(desk: Desk) -> None:
    moving, staying = desk.begin(), desk.begin()
    link = own_of(moving).link
    desk.hear(LinkDown(link, GENERATIONS[link]))
    assert own_of(moving).wait_until is None and own_of(staying).wait_until is not None
    assert desk.pool[link].sessions == set()
    sent = desk.round(moving)
    assert kinds(sent) == {other(link): [OpenDraft]}
    (command,) = sent[other(link)]
    assert isinstance(command, OpenDraft)
    assert (command.token_ids, command.draft_length) == ((1, 2, 3, 7, 7), 4)
    desk.propose(moving, other(link))
    assert own_of(moving).proposal is not None
    assert kinds(desk.round(staying)) == {other(link): [AdvanceDraft]}


def test_when_a_replica_drains_its_sessions_move_after_the_round_and_it_is_told(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.hear(LinkDraining(link, GENERATIONS[link]))
    desk.propose(session, link)  # what it owes is still taken
    assert own_of(session).proposal is not None
    assert kinds(desk.round(session)) == {link: [CloseDraft], other(link): [OpenDraft]}
    desk.propose(session, link)
    assert desk.dropped == [("d", "unknown_session")] and own_of(session).proposal is None


def test_the_last_replica_that_drains_is_used_until_it_is_gone(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.hear(LinkDown(other(link), GENERATIONS[other(link)]))
    desk.hear(LinkDraining(link, GENERATIONS[link]))
    assert kinds(desk.round(session)) == {link: [AdvanceDraft]}
    desk.hear(LinkGone(link, "d"))
    assert own_of(session).phase is DraftPhase.ABSENT
    assert desk.round(session) == {}
    desk.up(link)
    assert kinds(desk.round(session)) == {link: [OpenDraft]}


def test_a_replica_that_is_full_is_left_at_once_and_not_asked_by_that_session_for_a_while(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.desk.stale(link, Stale(session.session_id, 4, StaleReason.FULL), session, 0.0, desk.outcome)
    assert own_of(session).wait_until is None
    assert kinds(desk.round(session)) == {other(link): [OpenDraft]}
    desk.desk.stale(other(link), Stale(session.session_id, 4, StaleReason.FULL), session, 0.5, desk.outcome)
    assert desk.round(session, 0.9) == {}
    assert kinds(desk.round(session, 1.2)) == {link: [OpenDraft]}


def test_a_replica_that_rests_is_left_but_not_again_and_again(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.desk.missed([session], 1.0)
    assert kinds(desk.round(session, 1.0)) == {link: [CloseDraft], other(link): [OpenDraft]}
    desk.desk.missed([session], 1.5)
    assert kinds(desk.round(session, 1.5)) == {other(link): [AdvanceDraft]}  # both rest
    desk.up("z")
    assert kinds(desk.round(session, 2.0)) == {other(link): [AdvanceDraft]}
    assert kinds(desk.round(session, 3.1)) == {other(link): [CloseDraft], "z": [OpenDraft]}


def test_patience_is_a_replicas_own(desk: Desk) -> None:
    first, second = desk.begin(), desk.begin()
    desk.desk.missed([first], 1.0)
    assert desk.pool[own_of(first).link].patience.resting(1.0)
    assert not desk.pool[own_of(second).link].patience.resting(1.0)


def test_what_a_replica_tells_of_its_load_decides_who_comes(desk: Desk) -> None:
    desk.hear(LinkLoad("x", GENERATIONS["x"], DrafterLoad(8, 0, 0.0)))
    assert {own_of(desk.begin()).link for _ in range(4)} == {"y"}
    desk.hear(LinkLoad("x", GENERATIONS["x"], DrafterLoad(0, 0, 0.0)))
    desk.hear(LinkLoad("x", GENERATIONS["x"] + 9, DrafterLoad(8, 0, 0.0)))  # of another connection
    assert own_of(desk.begin()).link == "x"


def test_sessions_that_are_over_make_room(desk: Desk) -> None:
    sessions = [desk.begin() for _ in range(6)]
    assert [len(desk.pool[link].sessions) for link in "xy"] == [3, 3]
    for session in sessions:
        desk.desk.close(session, desk.outcome)
    assert [len(desk.pool[link].sessions) for link in "xy"] == [0, 0]


def test_a_replica_that_is_gone_is_forgotten_and_late_words_of_it_ignored(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.hear(LinkGone(link, "d"))
    assert desk.gone == [("d", link)]
    desk.hear(LinkDown(link, GENERATIONS[link]))
    desk.propose(session, link)
    desk.desk.stale(link, Stale(session.session_id, 4, StaleReason.FULL), session, 0.0, desk.outcome)
    assert desk.gone == [("d", link)] and desk.dropped == []
    assert kinds(desk.round(session)) == {other(link): [OpenDraft]}


def test_a_replica_whose_drafts_are_all_refused_is_told_of_until_one_is_accepted(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    for _ in range(ALARM_TOKENS // 4 - 1):
        desk.desk.verified(session, {"d": Credit(4, 0)})
    assert desk.desk.troubles == () and desk.useless == []
    desk.desk.verified(session, {"d": Credit(4, 0)})
    desk.desk.verified(session, {"d": Credit(4, 0)})
    assert desk.useless == [("d", link, True)]
    (trouble,) = desk.desk.troubles
    assert trouble.startswith("drafter d at ") and "drafts in vain" in trouble
    desk.desk.verified(session, {"d": Credit(4, 1)})
    assert desk.desk.troubles == () and desk.useless[1:] == [("d", link, False)]


def test_a_useless_replica_is_forgiven_when_another_process_takes_its_place_or_none(desk: Desk) -> None:
    session = desk.begin()
    link = own_of(session).link
    desk.desk.verified(session, {"d": Credit(ALARM_TOKENS, 0)})
    desk.up(link)  # the connection broke, the process is the same
    assert len(desk.desk.troubles) == 1
    desk.up(link, replace(INFO, instance_id="b"))
    assert desk.desk.troubles == () and desk.useless[-1] == ("d", link, False)
    desk.desk.verified(session, {"d": Credit(ALARM_TOKENS, 0)})
    assert len(desk.desk.troubles) == 1
    desk.hear(LinkGone(link, "d"))
    assert desk.desk.troubles == ()


def test_a_drafter_that_copies_text_may_find_nothing_to_copy(desk: Desk) -> None:
    for link in "xy":
        desk.up(link, replace(INFO, model=ModelInfo("prompt_lookup"), instance_id="c"))
    desk.desk.verified(desk.begin(), {"d": Credit(10 * ALARM_TOKENS, 0)})
    assert desk.desk.troubles == () and desk.useless == []
