"""The joint law of the emitted tokens is the target's, by exact integration over all random numbers."""

from __future__ import annotations

import pytest

from outrider.core.params import Acceptance
from tests.unit.core.acceptance import drafters
from tests.unit.core.acceptance.enumeration import distance
from tests.unit.core.acceptance.worlds import (
    BLOCK,
    TOKEN,
    TOLERANCE,
    Drafter,
    emitted_law,
    round_law,
    rule,
    sampled_chain,
    target,
    target_law,
)

CHAINS: dict[str, Drafter] = {
    "nothing": sampled_chain(0),
    "one token": sampled_chain(1),
    "two tokens": sampled_chain(2),
    "three tokens": sampled_chain(3),
    "four tokens": sampled_chain(4),
    "the target itself": sampled_chain(3, target),
    "likeliest": drafters.likeliest,
    "repeating": drafters.repeating,
    "clipped": drafters.clipped(sampled_chain(3), 2),
}
TREES: dict[str, Drafter] = {
    "two siblings": drafters.sampled_tree((2,)),
    "all siblings": drafters.sampled_tree((3,)),
    "two below one": drafters.sampled_tree((1, 2)),
    "one below two": drafters.sampled_tree((2, 1)),
    "two below two": drafters.sampled_tree((2, 2)),
    "the target itself": drafters.sampled_tree((2, 1), target),
    "likeliest": drafters.likeliest_tree,
    "chosen and drawn": drafters.mixed,
    "clipped": drafters.clipped(drafters.sampled_tree((2, 1)), 3),
}


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, acceptance: Acceptance) -> None:
    assert distance(emitted_law(rule(acceptance), CHAINS[name]), target_law()) < TOLERANCE


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("name", TREES)
def test_trees(name: str, acceptance: Acceptance) -> None:
    assert distance(emitted_law(rule(acceptance), TREES[name]), target_law()) < TOLERANCE


def accepted(acceptance: Acceptance, drafter: Drafter, context: tuple[int, ...]) -> float:
    """Draft tokens that a round accepts, on average."""
    law = round_law(rule(acceptance), drafter, context, target)
    return sum(chance * (len(tokens) - 1) for tokens, chance in law.items())


def test_block_accepts_at_least_as_much_as_token_and_more_somewhere() -> None:
    gains = [
        accepted(BLOCK, sampled_chain(3), context) - accepted(TOKEN, sampled_chain(3), context)
        for context in [(), (0,), (1,), (2,), (0, 1), (2, 2)]
    ]
    assert min(gains) > -TOLERANCE
    assert max(gains) > 0.02


def test_a_drafter_that_draws_from_the_target_is_always_believed() -> None:
    for acceptance in (TOKEN, BLOCK):
        assert accepted(acceptance, sampled_chain(3, target), ()) == pytest.approx(3.0)


def test_more_siblings_are_accepted_more_often() -> None:
    one, two, three = (accepted(TOKEN, drafters.sampled_tree((width,)), (1, 1)) for width in (1, 2, 3))
    assert one < two < three


STOP = 2


def stopping(context: tuple[int, ...]) -> tuple[float, ...]:
    """Behind a stop token the verifier takes any law, since nothing counts there."""
    return (1.0, 0.0, 0.0) if context and context[-1] == STOP else target(context)


def until_stop(law: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The law of what is delivered."""
    trimmed: dict[tuple[int, ...], float] = {}
    for tokens, chance in law.items():
        kept = tokens[: tokens.index(STOP)] if STOP in tokens else tokens
        trimmed[kept] = trimmed.get(kept, 0.0) + chance
    return trimmed


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("drafter", [sampled_chain(3), drafters.sampled_tree((2, 2)), drafters.likeliest])
def test_nothing_behind_a_stop_token_counts(drafter: Drafter, acceptance: Acceptance) -> None:
    emitted = emitted_law(rule(acceptance), drafter, stopping)
    assert distance(until_stop(emitted), until_stop(target_law())) < TOLERANCE
