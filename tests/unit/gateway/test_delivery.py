"""What reaches the client does not depend on how tokens were grouped into rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.core.errors import InternalError
from outrider.core.params import TokenLogprobs
from outrider.gateway.delivery import Delivery
from outrider.gateway.detokenizer import DetokenizerFactory
from outrider.wire.messages import GenerationDelta
from tests.unit.gateway import tokenizers_zoo as zoo


def deliver(
    tokenizer: Tokenizer, stops: list[str], rounds: list[list[int]], flags=None, ended_by=None, **options
) -> tuple[Delivery, list[GenerationDelta]]:
    skip = options.pop("skip_special_tokens", True)
    delivery = Delivery(DetokenizerFactory(tokenizer).create(skip_special_tokens=skip), stops, **options)
    deltas: list[GenerationDelta] = []
    position = 0
    for index, token_ids in enumerate(rounds):
        accepted = len(token_ids) - 1 if flags is None else flags[index]
        entries = [entry(position + i, token_id) for i, token_id in enumerate(token_ids)]
        deltas += delivery.push(token_ids, accepted, entries if options.get("logprobs") else ())
        position += len(token_ids)
        if delivery.stopped:
            break
    return delivery, deltas + delivery.finish(ended_by)


def entry(position: int, token_id: int) -> TokenLogprobs:
    """What is told of a token; different at every position."""
    return TokenLogprobs(token_id, -1.0 - position, 1 + position)


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


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(data=st.data())
def test_log_probabilities_come_with_exactly_the_tokens_delivered(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=25))
    rounds = cut(ids, data.draw(st.lists(st.integers(1, 7), max_size=8)))
    flags = [data.draw(st.integers(0, len(round_))) for round_ in rounds]
    delivery, deltas = deliver(tokenizer, ["a", "th", "\n"], rounds, flags, logprobs=True)
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.token_ids)
    told = [one for delta in deltas for one in delta.logprobs]
    assert told == [entry(position, ids[position]) for position in range(delivery.delivered)]


def test_log_probabilities_that_do_not_fit_the_tokens_are_a_defect():
    delivery = Delivery(DetokenizerFactory(zoo.byte_level()).create(), [], logprobs=True)
    with pytest.raises(InternalError):
        delivery.push([1, 2], 0, [entry(0, 1)])
    with pytest.raises(InternalError):
        delivery.push([1], 0)


def test_log_probabilities_that_nobody_asked_for_are_not_told():
    _, deltas = deliver(zoo.byte_level(), [], [[1, 2, 3]])
    assert all(delta.logprobs == () for delta in deltas)


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(data=st.data())
def test_any_grouping_gives_the_same_with_stops_included_or_from_min_tokens_on(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=25))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, max(len(text) - 1, 0)))
    stops = [stop for stop in ["a", text[start : start + data.draw(st.integers(1, 6))]] if stop]
    options = {
        "include_stop": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 12)),
        "skip_special_tokens": data.draw(st.booleans()),
    }
    single = outcome(*deliver(tokenizer, stops, [[token_id] for token_id in ids], **options))
    lengths = data.draw(st.lists(st.integers(0, 7), max_size=8))
    assert outcome(*deliver(tokenizer, stops, cut(ids, lengths), **options)) == single
    assert single[1] == ids[: len(single[1])]
    if single[2]:
        assert len(single[1]) > options["min_tokens"]
        assert any(single[0].endswith(stop) for stop in stops) or not options["include_stop"]


def test_a_stop_string_counts_only_if_a_token_after_min_tokens_completes_it():
    tokenizer = zoo.byte_fallback()
    a, b, c = (tokenizer.token_to_id(token) for token in "abc")
    rounds = [[a, b], [c, a, b, c]]
    assert outcome(*deliver(tokenizer, ["ab"], rounds)) == ("", [a, b], True)
    assert outcome(*deliver(tokenizer, ["ab"], rounds, min_tokens=1)) == ("", [a, b], True)
    assert outcome(*deliver(tokenizer, ["ab"], rounds, min_tokens=2)) == ("abc", [a, b, c, a, b], True)
    assert outcome(*deliver(tokenizer, ["ab"], rounds, min_tokens=4)) == ("abc", [a, b, c, a, b], True)
    assert outcome(*deliver(tokenizer, ["ab"], rounds, min_tokens=5)) == ("abcabc", [a, b, c, a, b, c], False)


def test_an_included_stop_string_ends_the_text():
    tokenizer = zoo.byte_fallback()
    a, b, end = (tokenizer.token_to_id(token) for token in ("a", "b", "END"))
    _, deltas = deliver(tokenizer, ["bEN"], [[a], [b, end, a, a]], include_stop=True)
    assert "".join(delta.text for delta in deltas) == "abEN"
    assert [token_id for delta in deltas for token_id in delta.token_ids] == [a, b, end]


def test_a_stop_token_is_included_as_text_alone():
    tokenizer = zoo.byte_fallback()
    a, b, end = (tokenizer.token_to_id(token) for token in ("a", "b", "</s>"))
    assert outcome(*deliver(tokenizer, [], [[a]], ended_by=b)) == ("a", [a], False)
    assert outcome(*deliver(tokenizer, [], [[a]], ended_by=b, include_stop=True)) == ("ab", [a], False)
    # A special token is no text, unless special tokens are wanted.
    assert outcome(*deliver(tokenizer, [], [[a]], ended_by=end, include_stop=True)) == ("a", [a], False)
    seen = deliver(tokenizer, [], [[a]], ended_by=end, include_stop=True, skip_special_tokens=False)
    assert outcome(*seen) == ("a</s>", [a], False)


def said(deltas: list[GenerationDelta]) -> tuple[str, list[int], list[TokenLogprobs]]:
    return (
        "".join(delta.text for delta in deltas),
        [token_id for delta in deltas for token_id in delta.token_ids],
        [one for delta in deltas for one in delta.logprobs],
    )


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(data=st.data())
def test_a_stream_cut_behind_any_delta_goes_on_without_a_gap_or_a_repetition(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=25))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, max(len(text) - 1, 0)))
    stops = [stop for stop in ["th", text[start : start + data.draw(st.integers(1, 6))]] if stop]
    options = {
        "include_stop": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 12)),
        "skip_special_tokens": data.draw(st.booleans()),
        "logprobs": data.draw(st.booleans()),
        "ended_by": data.draw(st.none() | st.integers(0, tokenizer.get_vocab_size() - 1)),
    }

    def once(**more) -> list[GenerationDelta]:
        rounds = cut(ids, data.draw(st.lists(st.integers(0, 7), max_size=8)))
        flags = [data.draw(st.integers(0, len(round_))) for round_ in rounds]
        return deliver(tokenizer, stops, rounds, flags, **options, **more)[1]

    first = once()
    read = first[: data.draw(st.integers(0, len(first)))]
    position = sum(len(delta.token_ids) for delta in read)
    again = once(resumed_at=position)
    assert all(
        delta.first_token + len(delta.token_ids) <= position or delta.first_token >= position
        for delta in again
    )
    # Text alone comes only at the end, and who has it already knows it.
    has_end = bool(read) and not read[-1].token_ids
    assert all(delta.token_ids for delta in first[:-1])
    rest = [delta for delta in again if delta.first_token >= position and (delta.token_ids or not has_end)]
    assert said([*read, *rest]) == said(first)
