"""The drafting desk: what is asked, what is believed. No network, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import Acceptance, SamplingParams, SpeculationParams, StopParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.drafts import DraftDesk
from outrider.verifying.features import FeatureFeed
from outrider.verifying.fusion.council import Council
from outrider.verifying.link_state import LinkState
from outrider.verifying.mailbox import Admit, LinkDown, LinkDraining, LinkNews, LinkUp, Outcome
from outrider.verifying.patience import Patience
from outrider.verifying.rounds import Settled
from outrider.verifying.session import Drafting, DraftPhase, LinkDrafting, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, OpenDraft, Stale
from tests.unit.verifying.fake_rows import FakeRows

INFO = DrafterInfo(ModelInfo("draft"), "draft_model", (), 16, 8, "a")
ROUND = Settled((7,), 0, ())


class Desk:
    """A desk with one link that is up, and one session."""

    def __init__(self, *, max_tokens: int = 100, up: bool = True) -> None:
        self.dropped: list[str] = []
        self.sessions: list[Session] = []
        self.rests: list[bool] = []
        feed = FeatureFeed(FakeRows().api, lambda *_: None)
        self.pool = DrafterPool(
            {"d": 0, "other": 0},
            patience=lambda: Patience(limit_s=1.0, max_misses=2, rest_s=10.0),
            feed=feed,
            gone=lambda *_: None,
            useless=lambda *_: None,
        )
        self.desk = DraftDesk(
            self.pool,
            vocab_size=100,
            max_nodes=8,
            feed=feed,
            council=Council(nodes=8, least=0.0),
            dropped=lambda _, reason: self.dropped.append(reason),
            resting=lambda _drafter, _link, rests: self.rests.append(rests),
        )
        if up:
            self.hear(LinkUp("d", 1, INFO, "d"))
        record = SessionRecord("s", (1, 2, 3), SamplingParams(), StopParams(max_tokens), epoch=4)
        drafting = self.desk.begin(Admit(record, (("d", 4),), 8))
        self.session = Session.admitted(record, 1, drafting)
        self.sessions.append(self.session)
        self.outcome = Outcome()

    @property
    def link(self) -> LinkState:
        return self.pool["d"]

    @property
    def own(self) -> LinkDrafting:
        return self.session.drafting.links["d"]

    @property
    def sent(self) -> list[object]:
        commands = [c for batch in self.outcome.commands.values() for c in batch]
        self.outcome = Outcome()
        return list(commands)

    def hear(self, news: LinkNews) -> None:
        self.desk.hear(news, self.sessions)

    def round(self, now: float = 0.0) -> None:
        self.session.tokens.append(7)
        self.desk.ask(self.session, ROUND, now, self.outcome)

    def propose(self, **changes: object) -> None:
        values = {"session_id": "s", "epoch": 4, "base_len": len(self.session.tokens)}
        proposal = Proposal(**{**values, "tree": TokenTree.chain([5, 6]), **changes})  # type: ignore[arg-type]
        self.desk.take("d", proposal, self.session, 0.0)


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.desk.admit(made.session, 0.0, made.outcome)
    made.round()
    made.outcome = Outcome()
    return made


def test_admission_opens_without_asking_and_rounds_advance() -> None:
    made = Desk()
    made.desk.admit(made.session, 0.0, made.outcome)
    (opened,) = made.sent
    assert isinstance(opened, OpenDraft)
    assert (opened.token_ids, opened.draft_length, opened.epoch) == ((1, 2, 3), 0, 4)
    assert made.session.drafting.wait_until is None
    made.round()
    (advance,) = made.sent
    assert isinstance(advance, AdvanceDraft)
    assert (advance.base_len, advance.token_ids, advance.draft_length) == (3, (7,), 4)
    assert made.session.drafting.wait_until == 1.0


def test_a_good_proposal_is_taken_and_ends_the_wait(desk: Desk) -> None:
    desk.propose()
    assert desk.own.proposal is not None
    assert desk.session.drafting.wait_until is None
    assert desk.dropped == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epoch": 3}, "epoch"),
        ({"epoch": 5}, "epoch"),
        ({"base_len": 3}, "late"),
        ({"base_len": 5}, "base_len"),
        ({"tree": TokenTree.chain([1] * 9)}, "oversized"),
        ({"tree": TokenTree.chain([100])}, "malformed"),
        ({"tree": TokenTree((1, 1), (-1, -1))}, "malformed"),
        ({"tree": TokenTree((1,), (0,))}, "malformed"),
    ],
)
def test_a_bad_proposal_is_dropped_and_counted(desk: Desk, changes: dict[str, object], reason: str) -> None:
    desk.propose(**changes)
    assert desk.dropped == [reason]
    assert desk.own.proposal is None
    # Who has answered is not waited for any longer; who answered something else may still answer.
    assert (desk.session.drafting.wait_until is None) == (reason in ("oversized", "malformed"))


def test_a_second_proposal_is_a_duplicate(desk: Desk) -> None:
    desk.propose()
    first = desk.own.proposal
    desk.propose(tree=TokenTree.chain([8]))
    assert desk.dropped == ["duplicate"] and desk.own.proposal is first


def test_a_drafter_cannot_speak_for_anothers_session(desk: Desk) -> None:
    proposal = Proposal("s", 4, 4, TokenTree.chain([5]))
    desk.hear(LinkUp("other", 1, INFO, "other"))
    desk.desk.take("other", proposal, desk.session, 0.0)
    desk.desk.take("d", proposal, None, 0.0)
    assert desk.dropped == ["unknown_session"] * 2 and desk.own.proposal is None


def test_what_was_not_asked_for_is_dropped() -> None:
    made = Desk()
    made.desk.admit(made.session, 0.0, made.outcome)
    made.propose()
    assert made.dropped == ["unasked"]


def test_a_session_without_speculation_sends_nothing_ever() -> None:
    made = Desk()
    made.session.drafting = Drafting()
    made.desk.admit(made.session, 0.0, made.outcome)
    made.round()
    made.propose()
    made.desk.close(made.session, made.outcome)
    assert made.sent == [] and made.dropped == ["unknown_session"]


def test_the_draft_never_reaches_past_max_tokens() -> None:
    made = Desk(max_tokens=3)
    made.desk.admit(made.session, 0.0, made.outcome)
    assert len(made.sent) == 1
    made.round()
    (advance,) = made.sent
    assert isinstance(advance, AdvanceDraft) and advance.draft_length == 1
    made.round()
    assert made.sent == []


def test_stale_unknown_and_diverged_open_again_at_the_next_round(desk: Desk) -> None:
    for reason in (StaleReason.UNKNOWN, StaleReason.DIVERGED):
        desk.desk.stale("d", Stale("s", 4, reason), desk.session, 0.0, desk.outcome)
        assert desk.session.drafting.wait_until is None
        desk.round()
        (opened,) = desk.sent
        assert isinstance(opened, OpenDraft)
        assert opened.token_ids == tuple(desk.session.tokens) and opened.draft_length == 4


def test_stale_too_long_ends_drafting_for_good(desk: Desk) -> None:
    desk.desk.stale("d", Stale("s", 4, StaleReason.TOO_LONG), desk.session, 0.0, desk.outcome)
    assert [type(c) for c in desk.sent] == [CloseDraft]
    desk.round()
    assert desk.sent == []


def test_stale_full_backs_off(desk: Desk) -> None:
    desk.desk.stale("d", Stale("s", 4, StaleReason.FULL), desk.session, 5.0, desk.outcome)
    desk.round(5.5)
    assert desk.sent == []
    desk.round(7.0)
    assert [type(c) for c in desk.sent] == [OpenDraft]


def test_who_loses_the_session_again_and_again_is_left_alone_for_a_while(desk: Desk) -> None:
    def lose(now: float) -> None:
        desk.desk.stale("d", Stale("s", 4, StaleReason.UNKNOWN), desk.session, now, desk.outcome)

    for now in (0.1, 0.2):
        lose(now)
        desk.round(now)
        assert [type(c) for c in desk.sent] == [OpenDraft]
    lose(0.3)
    desk.round(1.2)
    assert desk.sent == []
    desk.round(1.4)
    assert [type(c) for c in desk.sent] == [OpenDraft]
    desk.propose()
    lose(1.5)
    desk.round(1.5)
    assert [type(c) for c in desk.sent] == [OpenDraft]


def test_stale_with_another_epoch_is_ignored(desk: Desk) -> None:
    desk.desk.stale("d", Stale("s", 3, StaleReason.TOO_LONG), desk.session, 0.0, desk.outcome)
    assert desk.own.phase is DraftPhase.OPEN


def test_a_lost_link_ends_the_wait_and_a_new_one_opens_again(desk: Desk) -> None:
    desk.hear(LinkDown("d", 1))
    assert desk.session.drafting.wait_until is None
    desk.round()
    assert desk.sent == []
    desk.hear(LinkUp("d", 2, INFO, "d"))
    desk.round()
    assert list(desk.outcome.commands) == [("d", 2)]
    assert [type(c) for c in desk.sent] == [OpenDraft]


def test_the_end_of_an_older_connection_is_no_news(desk: Desk) -> None:
    desk.hear(LinkUp("d", 2, INFO, "d"))
    desk.hear(LinkDown("d", 1))
    assert desk.link.up


def test_misses_rest_the_drafter_which_then_only_keeps_up(desk: Desk) -> None:
    desk.desk.missed([desk.session], 1.0)
    desk.round(1.0)
    desk.desk.missed([desk.session], 2.0)
    assert desk.rests == [True]
    desk.outcome = Outcome()
    desk.round(3.0)
    (advance,) = desk.sent
    assert isinstance(advance, AdvanceDraft) and advance.draft_length == 0
    assert desk.session.drafting.wait_until is None
    desk.round(13.0)  # the probe
    (advance,) = desk.sent
    assert isinstance(advance, AdvanceDraft) and advance.draft_length == 4
    desk.propose()
    assert desk.rests == [True, False]


def test_a_draining_drafter_gets_no_new_sessions(desk: Desk) -> None:
    desk.hear(LinkDraining("d", 1))
    desk.round()
    assert [type(c) for c in desk.sent] == [AdvanceDraft]
    desk.own.phase = DraftPhase.ABSENT
    desk.round()
    desk.desk.admit(desk.session, 0.0, desk.outcome)
    assert desk.sent == []


def test_closing_frees_the_drafters_state_once(desk: Desk) -> None:
    desk.desk.close(desk.session, desk.outcome)
    desk.desk.close(desk.session, desk.outcome)
    assert [type(c) for c in desk.sent] == [CloseDraft]


@pytest.mark.parametrize(
    ("rows", "told"), [(0, Acceptance.BLOCK), (100, Acceptance.BLOCK), (101, Acceptance.COUPLED)]
)
def test_a_head_larger_than_the_targets_draws_nothing(rows: int, told: Acceptance) -> None:
    """A proposal with an id past the target's head is dropped: tokens must not be drawn then, but chosen."""
    desk = Desk()
    info = replace(INFO, model=ModelInfo("draft", vocab_size=rows))
    desk.hear(LinkUp("d", 2, info, "d"))
    speculation = SpeculationParams(acceptance=Acceptance.BLOCK)
    desk.session.record = replace(desk.session.record, speculation=speculation)
    desk.desk.admit(desk.session, 0.0, desk.outcome)
    (command,) = desk.sent
    assert isinstance(command, OpenDraft) and command.acceptance is told
