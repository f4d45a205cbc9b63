"""The law of the emitted tokens, by enumeration: it is the target's, for any drafter, chain or tree.

The noise of one position is replaced by a ticket that takes TICKETS values with equal probability; a pick is
a function of ticket and distribution whose law is that distribution exactly. Everything else is the real
thing. All probabilities are fractions, so equality means equality.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import pytest

from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from tests.unit.core.strategies import all_trees

TICKETS = 4
LENGTH = 3
Tokens = tuple[int, ...]
Noise = Sequence[int]
Drafter = Callable[[Tokens, Noise], TokenTree]


def target(context: Tokens, vocabulary: int) -> tuple[int, ...]:
    """Probabilities of the next token in units of 1/TICKETS: different for every context, zeros included."""
    cut = (
        3 * len(context) + 2 * sum((index + 1) * token for index, token in enumerate(context)) + 1
    ) % TICKETS
    if vocabulary == 2:
        return (cut, TICKETS - cut)
    return (cut // 2, cut - cut // 2, TICKETS - cut)


def pick(probs: Sequence[int], ticket: int) -> int:
    """The ticket-th unit of probability belongs to which token?"""
    for token, prob in enumerate(probs):
        if ticket < prob:
            return token
        ticket -= prob
    raise AssertionError("probabilities sum to TICKETS")


def picks_over(tree: TokenTree, context: Tokens, noise: Noise, vocabulary: int) -> list[int]:
    """The target's pick after the context and after each node, each with its own position's noise."""
    histories = [context] + [
        context + tuple(tree.token_ids[above] for above in tree.path_to(node)) for node in range(len(tree))
    ]
    return [pick(target(history, vocabulary), noise[len(history)]) for history in histories]


def generate(noise: Noise, drafter: Drafter, vocabulary: int, rounds: list[int] | None = None) -> Tokens:
    """Rounds until LENGTH tokens are there."""
    context: Tokens = ()
    while len(context) < LENGTH:
        tree = drafter(context, noise)
        emitted = walk(tree, picks_over(tree, context, noise, vocabulary)).token_ids
        if rounds is not None:
            rounds.append(len(emitted))
        context = (context + emitted)[:LENGTH]
    return context


def plain(noise: Noise, vocabulary: int) -> Tokens:
    return generate(noise, lambda context, noise: TokenTree(), vocabulary)


def all_noise() -> list[Noise]:
    # A tree may look past the last token that is kept.
    return [(*tickets, 0, 1, 2, 3) for tickets in product(range(TICKETS), repeat=LENGTH)]


def target_law(vocabulary: int) -> dict[Tokens, Fraction]:
    law: dict[Tokens, Fraction] = {}
    for tokens in product(range(vocabulary), repeat=LENGTH):
        chance = Fraction(1)
        for index, token in enumerate(tokens):
            chance *= Fraction(target(tokens[:index], vocabulary)[token], TICKETS)
        if chance:
            law[tokens] = chance
    return law


def emitted_law(drafter: Drafter, vocabulary: int) -> dict[Tokens, Fraction]:
    noises = all_noise()
    counts = Counter(generate(noise, drafter, vocabulary) for noise in noises)
    return {tokens: Fraction(count, len(noises)) for tokens, count in counts.items()}


@pytest.mark.parametrize("vocabulary", [2, 3])
def test_without_drafter_the_joint_law_is_the_targets(vocabulary: int) -> None:
    assert emitted_law(lambda context, noise: TokenTree(), vocabulary) == target_law(vocabulary)


def scripted(first: TokenTree, later: TokenTree) -> Drafter:
    """Proposes `first` in the first round, `later` in all others."""
    return lambda context, _: later if context else first


def test_every_proposal_in_every_round_gives_the_same_tokens() -> None:
    """For each noise and EACH sequence of proposals: so for any drafter, whatever it knows."""
    firsts, laters = list(all_trees(vocabulary=2, most=3)), list(all_trees(vocabulary=2, most=2))
    assert len(firsts) > 30
    for noise in all_noise():
        expected = plain(noise, 2)
        for first, later in product(firsts, laters):
            assert generate(noise, scripted(first, later), 2) == expected


def test_every_chain_over_three_tokens() -> None:
    chains = [TokenTree.chain(ids) for size in range(4) for ids in product(range(3), repeat=size)]
    for noise in all_noise():
        expected = plain(noise, 3)
        for chain in chains:
            assert generate(noise, scripted(chain, chain), 3) == expected


def future(context: Tokens, noise: Noise, vocabulary: int, count: int) -> Tokens:
    """What the target is going to pick: a drafter that knows it."""
    tokens = context
    for _ in range(count):
        tokens = (*tokens, pick(target(tokens, vocabulary), noise[len(tokens)]))
    return tokens[len(context) :]


def oracle(context: Tokens, noise: Noise) -> TokenTree:
    return TokenTree.chain(future(context, noise, 3, 2))


def spoiler(context: Tokens, noise: Noise) -> TokenTree:
    """Right in the first token, wrong in the second."""
    first, second = future(context, noise, 3, 2)
    return TokenTree.chain([first, (second + 1) % 3])


def flatterer(context: Tokens, noise: Noise) -> TokenTree:
    """Proposes only what it likes to see emitted, and only if it is going to be: as biased as can be."""
    tokens = future(context, noise, 3, 3)
    liked = next((index for index, token in enumerate(tokens) if token != 0), len(tokens))
    return TokenTree.chain(tokens[:liked])


def gambler(context: Tokens, noise: Noise) -> TokenTree:
    """Looks at the noise of its own position and of the next, and at nothing sensible."""
    here = noise[len(context)]
    return TokenTree.chain([here % 3, noise[len(context) + 1] % 3][: here % 3])


def bush(context: Tokens, noise: Noise) -> TokenTree:
    """A tree with the right path in it, hidden behind wrong branches."""
    first, second = future(context, noise, 3, 2)
    wrong = (first + 1) % 3
    return TokenTree((wrong, first, second, (second + 1) % 3, second), (-1, -1, 0, 1, 1))


@pytest.mark.parametrize("drafter", [oracle, spoiler, flatterer, gambler, bush])
def test_the_joint_law_over_several_rounds_is_the_targets(drafter: Drafter) -> None:
    assert emitted_law(drafter, 3) == target_law(3)


def test_these_drafters_do_cut_the_rounds_differently() -> None:
    boundaries = set()
    for drafter in (oracle, spoiler, flatterer, gambler, bush):
        for noise in all_noise():
            rounds: list[int] = []
            generate(noise, drafter, 3, rounds)
            boundaries.add(tuple(rounds))
    assert {(3,), (2, 2), (1, 1, 1), (1, 3), (2, 1)} <= boundaries


def test_the_test_would_notice_a_biased_rule() -> None:
    """A rule that emits the draft token unchecked, for contrast, has another law."""

    def trusting(noise: Noise) -> Tokens:
        tree = gambler((), noise)
        rest = plain(noise, 3)
        return (tree.token_ids + rest)[:LENGTH]

    noises = all_noise()
    counts = Counter(trusting(noise) for noise in noises)
    law = {tokens: Fraction(count, len(noises)) for tokens, count in counts.items()}
    assert law != target_law(3)
