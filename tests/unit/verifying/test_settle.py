"""A round's walk, trimmed: the same as one token at a time, at every offset."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.rounds import Walk
from outrider.core.sessions import FinishReason
from outrider.core.trees import TokenTree
from outrider.verifying.rounds import clip, positions, settle

WALK = Walk((0, 1, 2), (10, 11, 12, 13))


def test_a_walk_that_ends_nothing_is_kept_whole() -> None:
    settled = settle(WALK, 10, frozenset())
    assert settled.token_ids == (10, 11, 12, 13)
    assert (settled.accepted, settled.nodes, settled.finish_reason) == (3, (0, 1, 2), None)


def test_max_tokens_cuts_at_every_offset() -> None:
    for remaining in range(1, 5):
        settled = settle(WALK, remaining, frozenset())
        assert settled.token_ids == WALK.token_ids[:remaining]
        assert settled.finish_reason is FinishReason.LENGTH
        assert settled.accepted == min(remaining, 3) == len(settled.nodes)


def test_a_stop_token_is_not_delivered_nor_is_anything_after_it() -> None:
    for offset, stop in enumerate(WALK.token_ids):
        settled = settle(WALK, 10, frozenset({stop}))
        assert settled.token_ids == WALK.token_ids[:offset]
        assert settled.finish_reason is FinishReason.STOP and settled.stop_token_id == stop


def test_an_earlier_stop_wins_over_the_length_and_a_later_one_does_not_count() -> None:
    walk = Walk((), (10, 11, 99, 20, 21, 22))
    assert settle(walk, 5, frozenset({99})).token_ids == (10, 11)
    assert settle(walk, 5, frozenset({99})).finish_reason is FinishReason.STOP
    assert settle(walk, 2, frozenset({99})).finish_reason is FinishReason.LENGTH
    assert settle(walk, 3, frozenset({99})).finish_reason is FinishReason.STOP


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(1, 8),
    st.frozensets(st.integers(0, 9), max_size=3),
)
def test_settling_a_run_equals_settling_one_token_at_a_time(
    token_ids: list[int], remaining: int, stops: frozenset[int]
) -> None:
    at_once = settle(Walk(tuple(range(len(token_ids) - 1)), tuple(token_ids)), remaining, stops)
    kept: list[int] = []
    for token_id in token_ids:
        one = settle(Walk((), (token_id,)), remaining - len(kept), stops)
        kept.extend(one.token_ids)
        if one.finish_reason is not None:
            break
    assert (at_once.token_ids, at_once.finish_reason, at_once.stop_token_id) == (
        tuple(kept),
        one.finish_reason,
        one.stop_token_id,
    )
    assert at_once.accepted == len(at_once.nodes) <= len(at_once.token_ids)


def test_a_tree_is_clipped_to_what_can_still_count() -> None:
    chain = TokenTree.chain([1, 2, 3, 4])
    assert clip(chain, nodes=8, depth=2) == TokenTree.chain([1, 2])
    assert clip(chain, nodes=3, depth=9) == TokenTree.chain([1, 2, 3])
    assert len(clip(chain, nodes=4, depth=0)) == 0
    tree = TokenTree((1, 2, 3, 4), (-1, -1, 0, 2))
    assert clip(tree, nodes=8, depth=1) == TokenTree((1, 2), (-1, -1))
    assert clip(tree, nodes=3, depth=9) == TokenTree((1, 2, 3), (-1, -1, 0))


def test_positions_follow_depth_not_order() -> None:
    assert positions(TokenTree((1, 2, 3), (-1, -1, 1)), 7) == [7, 8, 8, 9]
