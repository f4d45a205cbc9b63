"""Drafting ahead with drawn tokens: no random number serves twice, so the law stays the target's.

The real session, the real rules, and exact integration over all random numbers of all rounds together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import product

import pytest

from outrider.core.acceptance import draw, judge
from outrider.core.params import Acceptance, SamplingParams
from outrider.core.trees import TokenTree
from outrider.drafting.session import DraftSession, SessionKey
from tests.unit.core.acceptance.enumeration import World, distance, law_of
from tests.unit.core.acceptance.worlds import BLOCK, TOKEN, TOLERANCE, Tokens, WorldUniforms, dense, sparse

LENGTH = 4
Since = Callable[[DraftSession], int]


def target(context: Tokens) -> tuple[float, float]:
    first = (0.3, 0.85, 0.0, 0.6, 0.5)[(3 * len(context) + sum(context)) % 5]
    return first, 1.0 - first


def drafts(context: Tokens) -> tuple[float, float]:
    first = (0.5, 0.2, 0.9, 0.4)[(len(context) + 3 * sum(context)) % 4]
    return first, 1.0 - first


def honest(session: DraftSession) -> int:
    return session.since


def by_position_alone(session: DraftSession) -> int:
    """As if a draw belonged to its position, whatever became of it before."""
    return 0


def draft_ahead(session: DraftSession, goal: int, world: World, since: Since) -> None:
    while len(session.ahead) < goal:
        law = drafts((*session.tokens, *session.ahead))
        number = world.number("draft", since(session), len(session))
        session.ahead.append(draw(dense(law), number))  # type: ignore[arg-type]
        session.laws.append(sparse(law))


def generate(
    world: World,
    acceptance: Acceptance,
    since: Since,
    *,
    length: int,
    run_ahead: int,
    late: Collection[int] = (),
    clip: int = 9,
) -> Tokens:
    """Rounds until LENGTH tokens are there; those at the lengths `late` get their proposal too late."""
    session = DraftSession(SessionKey(1, "a"), 1, SamplingParams(), [], acceptance=acceptance)
    while len(session.tokens) < LENGTH:
        left = LENGTH - len(session.tokens)
        wanted = min(length, left - 1)
        draft_ahead(session, min(wanted + run_ahead, left), world, since)
        tokens = session.ahead[:wanted]
        session.sent = len(tokens)
        tree = TokenTree(tuple(tokens), TokenTree.chain(tokens).parents, tuple(session.laws[:wanted]))
        tree = tree.truncated(0 if len(session.tokens) in late else clip)
        context = tuple(session.tokens)
        walk = judge(
            acceptance,
            tree,
            lambda node, tree=tree, context=context: dense(target((*context, *tree.token_ids[: node + 1]))),
            WorldUniforms(world, len(context)),
        )
        session.commit(walk.token_ids)
    return tuple(session.tokens)


def target_law() -> dict[Tokens, float]:
    law = {}
    for tokens in product(range(2), repeat=LENGTH):
        chance = 1.0
        for index, token in enumerate(tokens):
            chance *= target(tokens[:index])[token]
        if chance:
            law[tokens] = chance
    return law


def miss(acceptance: Acceptance, since: Since, **settings: object) -> float:
    law = law_of(lambda world: generate(world, acceptance, since, **settings))  # type: ignore[arg-type]
    return distance(law, target_law())


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("late", [(), (0,), (1,), (0, 2)])
@pytest.mark.parametrize(("length", "run_ahead", "clip"), [(1, 2, 9), (2, 0, 9), (2, 1, 9), (2, 2, 1)])
def test_the_law_is_the_targets(
    acceptance: Acceptance, late: tuple[int, ...], length: int, run_ahead: int, clip: int
) -> None:
    error = miss(acceptance, honest, length=length, run_ahead=run_ahead, late=late, clip=clip)
    assert error < TOLERANCE


def test_draws_that_belong_to_a_position_alone_would_be_wrong() -> None:
    """What a block was judged by is used again after it was rejected."""
    assert miss(BLOCK, by_position_alone, length=2, run_ahead=0) > 0.001
    assert miss(BLOCK, honest, length=2, run_ahead=0) < TOLERANCE


def session(acceptance: Acceptance, ahead: list[int], sent: int) -> DraftSession:
    laws = [sparse((0.5, 0.5))] * len(ahead)
    return DraftSession(
        SessionKey(1, "a"),
        1,
        SamplingParams(),
        [7],
        ahead,
        acceptance=acceptance,
        laws=laws,
        since=1,
        sent=sent,
    )


def test_what_was_drafted_past_an_accepted_proposal_stays() -> None:
    one = session(TOKEN, [0, 1, 0, 1], sent=2)
    assert one.commit([0, 1, 0]) == 5
    assert (one.ahead, len(one.laws), one.since, one.sent) == ([1], 1, 1, 0)


def test_what_was_sent_and_not_committed_goes() -> None:
    """The verifier may have judged it, or have got it too late: who knows."""
    one = session(TOKEN, [0, 1, 0, 1], sent=2)
    assert one.commit([0]) == 2
    assert (one.ahead, one.laws, one.since, one.sent) == ([], [], 2, 0)


def test_how_far_it_ran_ahead_does_not_matter() -> None:
    """The next token is drawn by the same number, whether or not the bonus token had been guessed."""
    guessed, not_yet = session(TOKEN, [0, 1, 0], sent=2), session(TOKEN, [0, 1], sent=2)
    for one in (guessed, not_yet):
        one.commit([0, 1, 0])
    assert (guessed.ahead, guessed.since, len(guessed)) == (not_yet.ahead, not_yet.since, len(not_yet))


def test_coupled_tokens_stay_in_any_case() -> None:
    one = session(Acceptance.COUPLED, [0, 1, 0, 1], sent=2)
    one.commit([0])
    assert one.ahead == [1, 0, 1]
