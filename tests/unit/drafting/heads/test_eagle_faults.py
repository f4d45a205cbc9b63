"""What a verifier may send to a head, and what happens when there is no room: only that session pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outrider.core.rounds import StaleReason
from outrider.core.trees import TokenTree
from outrider.wire.messages import CloseDraft, FeatureBlock, Stale
from tests.unit.drafting.heads.bench import GREEDY, HIDDEN, Bench, Text, advance, open_

Spoil = Callable[[FeatureBlock], FeatureBlock]


def _shifted(by: int) -> Spoil:
    return lambda block: replace(block, first_position=block.first_position + by)


def _narrow(block: FeatureBlock) -> FeatureBlock:
    return replace(block, columns=HIDDEN // 2, rows=2 * block.rows)


def _infinite(block: FeatureBlock) -> FeatureBlock:
    return replace(block, data=b"\x80\x7f" + block.data[2:])


def _not_a_number(block: FeatureBlock) -> FeatureBlock:
    return replace(block, data=block.data[:-2] + b"\xc0\x7f")


FAULTS = {
    "gap": (_shifted(1), "4 was next"),
    "overlap": (_shifted(-1), "4 was next"),
    "width": (_narrow, f"{HIDDEN // 2} elements a row"),
    "unknown": (lambda block: replace(block, name="last_hidden"), "was not asked for"),
    "infinite": (_infinite, "not finite"),
    "nan": (_not_a_number, "not finite"),
    "short": (lambda block: replace(block, data=block.data[:-2]), "bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_features_cost_their_own_session(fault: str) -> None:
    spoil, message = FAULTS[fault]
    bench, good, bad = Bench("eagle3"), Text("good", "eagle3", 12, 1), Text("bad", "eagle3", 12)
    bench.put(open_(good, length=0), open_(bad, length=0, features=bad.blocks(0, 4)))
    rest = bad.blocks(4, 11)
    command = replace(advance(bad, (), features=False), features=(spoil(rest[0]), *rest[1:]))
    bench.put(command, advance(good, (7,)))
    answers = bench.run()
    stale, tree = answers["bad"], answers["good"]
    assert isinstance(stale, Stale)
    assert stale.reason is StaleReason.INVALID
    assert message in stale.detail
    assert isinstance(tree, TokenTree)
    bench.check(good, tree, GREEDY)
    bench.put(CloseDraft("good", 1))
    assert bench.method.usage == 0.0


def test_features_of_tokens_that_are_not_committed_are_refused() -> None:
    bench, text = Bench("eagle"), Text("a", "eagle", 12)
    bench.put(open_(text, features=text.blocks(0, 12)))
    (answer,) = bench.run().values()
    assert isinstance(answer, Stale)
    assert answer.reason is StaleReason.INVALID
    assert "11 tokens can have features" in answer.detail


def test_numbers_that_overflow_cost_their_own_session() -> None:
    """Finite features may still give states that are not: such a row knows nothing, and harms nobody."""
    bench, good, bad = Bench("eagle3"), Text("good", "eagle3", 12, 1), Text("bad", "eagle3", 12)
    huge = tuple(replace(block, data=b"\x7f\x7f" * (block.rows * HIDDEN)) for block in bad.blocks(0, 11))
    bench.put(open_(good), open_(bad, features=huge))
    answers = bench.run()
    tree = answers["good"]
    assert isinstance(tree, TokenTree)
    bench.check(good, tree, GREEDY)
    assert isinstance(answers["bad"], TokenTree)


def test_a_session_opened_again_starts_over() -> None:
    bench, text = Bench("eagle3"), Text("a", "eagle3", 50)
    first = bench.propose(open_(text))
    assert bench.propose(open_(text)) == first
    assert bench.propose(open_(text, features=())) == TokenTree()
    assert bench.propose(open_(text, features=text.blocks(0, 49))) == first


def test_full_pool_drops_idle_sessions_first() -> None:
    bench = Bench("eagle3", pool_tokens=256)
    texts = [Text(name, "eagle3", 100, seed) for seed, name in enumerate("abc")]
    for text in texts:
        tree = bench.propose(open_(text))
        bench.check(text, tree, GREEDY)
    answer = bench.run_one(advance(texts[0], (3,)))
    assert isinstance(answer, Stale)
    assert answer.reason is StaleReason.UNKNOWN
    assert len(bench.propose(open_(texts[0]))) == 4


def test_a_session_that_can_never_fit_is_told_so() -> None:
    bench, text = Bench("eagle3", pool_tokens=256), Text("a", "eagle3", 250)
    answer = bench.run_one(open_(text, length=16))
    assert isinstance(answer, Stale)
    assert answer.reason is StaleReason.TOO_LONG
    assert bench.method.usage == 0.0


def test_features_that_wait_are_bounded() -> None:
    """Rows of sessions that nobody asks proposals for wait outside of the pool."""
    bench = Bench("eagle3", pool_tokens=256)
    texts = [Text(name, "eagle3", 60, seed) for seed, name in enumerate("abcde")]
    bench.put(*(open_(text, length=0) for text in texts))
    answers = bench.run()
    assert [name for name, answer in answers.items() if isinstance(answer, Stale)] == ["e"]
    stale = answers["e"]
    assert isinstance(stale, Stale)
    assert stale.reason is StaleReason.FULL


def test_closed_sessions_leave_nothing() -> None:
    bench = Bench("eagle", tree="3,2,1")
    texts = [Text(name, "eagle", 70, seed) for seed, name in enumerate("abcd")]
    bench.put(*(open_(text, nodes=12) for text in texts))
    bench.run()
    assert bench.method.usage > 0.0
    bench.put(*(CloseDraft(text.name, 1) for text in texts))
    assert bench.method.usage == 0.0
    assert not bench.scheduler.has_work


def test_features_that_lack_others_are_bounded_too() -> None:
    """Half of the features are of no use, and must not pile up; nor may they cost whoever sends all."""
    bench, good = Bench("eagle3", pool_tokens=256), Text("good", "eagle3", 60, 9)
    bench.propose(open_(good))
    texts = [Text(name, "eagle3", 60, seed) for seed, name in enumerate("abcdef")]
    bench.put(*(open_(text, length=0, features=text.blocks(0, 59)[:1]) for text in texts))
    answers = bench.run()
    assert {name for name, answer in answers.items() if isinstance(answer, Stale)} == {"e", "f"}
    assert all(isinstance(own, Stale) and own.reason is StaleReason.FULL for own in answers.values())
    assert len(bench.propose(advance(good, (7,)))) == 4


def test_a_round_is_not_turned_away_because_prompts_wait() -> None:
    bench, good = Bench("eagle3", pool_tokens=256), Text("good", "eagle3", 20, 9)
    bench.propose(open_(good))
    texts = [Text(name, "eagle3", 60, seed) for seed, name in enumerate("abcd")]
    bench.put(*(open_(text, length=0) for text in texts))
    bench.put(open_(Text("short", "eagle3", 21, 5), length=0))
    assert len(bench.propose(advance(good, (7,)))) == 4
