"""What reaches the client does not depend on how tokens were grouped into rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.gateway.delivery import Delivery
from outrider.gateway.detokenizer import DetokenizerFactory
from outrider.wire.messages import GenerationDelta
from tests.unit.gateway import tokenizers_zoo as zoo


def deliver(
    tokenizer: Tokenizer, stops: list[str], rounds: list[list[int]], flags=None
) -> tuple[Delivery, list[GenerationDelta]]:
    delivery = Delivery(DetokenizerFactory(tokenizer).create(), stops)
    deltas: list[GenerationDelta] = []
    for index, token_ids in enumerate(rounds):
        accepted = len(token_ids) - 1 if flags is None else flags[index]
        deltas += delivery.push(token_ids, accepted)
        if delivery.stopped:
            break
    return delivery, deltas + delivery.finish()


def cut(ids: list[int], lengths: list[int]) -> list[list[int]]:
    rounds, start = [], 0
    for length in lengths:
        rounds.append(ids[start : start + length])
        start += length
    return [*rounds, ids[start:]]


def outcome(delivery: Delivery, deltas: list[GenerationDelta]) -> tuple[str, list[int], bool]:
    text = "".join(delta.text for delta in deltas)
    return text, [token_id for delta in deltas for token_id in delta.token_ids], delivery.stopped


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(data=st.data())
def test_any_grouping_gives_the_same_text_ids_and_finish(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=25))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, max(len(text) - 1, 0)))
    stops = data.draw(st.lists(st.text("ab.\n", min_size=1, max_size=3), max_size=2))
    stops += [stop for stop in [text[start : start + data.draw(st.integers(1, 6))]] if stop]
    single = outcome(*deliver(tokenizer, stops, [[token_id] for token_id in ids]))
    lengths = data.draw(st.lists(st.integers(0, 7), max_size=8))
    assert outcome(*deliver(tokenizer, stops, cut(ids, lengths))) == single
    assert single[1] == ids[: len(single[1])]
    if not single[2]:
        assert single[:2] == (text, ids)


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(data=st.data())
def test_counts_agree_with_what_was_delivered(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=25))
    rounds = cut(ids, data.draw(st.lists(st.integers(1, 7), max_size=8)))
    flags = [data.draw(st.integers(0, len(round_))) for round_ in rounds]
    drafted = [index < flags[number] for number, round_ in enumerate(rounds) for index in range(len(round_))]
    delivery, deltas = deliver(tokenizer, ["a", "\n"], rounds, flags)
    position = 0
    for delta in deltas:
        assert delta.first_token == position
        kinds = drafted[position : position + len(delta.token_ids)]
        assert kinds == [index < delta.accepted for index in range(len(kinds))]
        position += len(delta.token_ids)
    assert delivery.delivered == position
    assert delivery.accepted == sum(drafted[:position]) == sum(delta.accepted for delta in deltas)


def test_one_round_is_one_delta():
    tokenizer = zoo.byte_level()
    ids = tokenizer.encode("the quick brown fox").ids
    delivery, deltas = deliver(tokenizer, [], [ids])
    assert deltas == [GenerationDelta("the quick brown fox", tuple(ids), len(ids) - 1, 0)]
    assert not delivery.stopped


def test_stop_inside_an_accepted_run_drops_the_rest_of_the_round():
    tokenizer = zoo.byte_fallback()
    a, b, end = (tokenizer.token_to_id(token) for token in ("a", "b", "END"))
    delivery, deltas = deliver(tokenizer, ["END"], [[a], [b, end, a, a]])
    assert outcome(delivery, deltas) == ("ab", [a, b, end], True)
    assert (delivery.delivered, delivery.accepted) == (3, 2)


def test_stop_across_rounds_is_held_back():
    tokenizer = zoo.byte_fallback()
    a, b, c = (tokenizer.token_to_id(token) for token in "abc")
    delivery = Delivery(DetokenizerFactory(tokenizer).create(), ["bc"])
    assert [delta.text for delta in delivery.push([a, b], 1)] == ["a"]
    assert [delta.text for delta in delivery.push([c, a], 1)] == [""]
    assert delivery.stopped
    assert delivery.delivered == 3


def test_stop_in_held_bytes_is_found_at_the_end_and_its_later_tokens_are_dropped():
    tokenizer = zoo.byte_fallback()
    a, newline, byte_a = (tokenizer.token_to_id(token) for token in ("a", "<0x0A>", "<0x41>"))
    delivery, deltas = deliver(tokenizer, ["\n"], [[a, newline, byte_a]])
    assert outcome(delivery, deltas) == ("a", [a, newline], True)
