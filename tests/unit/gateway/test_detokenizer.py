"""The pieces of a stream, put together, are the text of all its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.gateway.detokenizer import DetokenizerFactory, TextPiece
from tests.unit.gateway import tokenizers_zoo as zoo


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[TextPiece]:
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=skip)
    pieces = [piece for token_id in ids for piece in detokenizer.push(token_id)]
    return pieces + detokenizer.flush()


def text_of(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> str:
    return "".join(piece.text for piece in pieces_of(tokenizer, ids, skip=skip))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("make", zoo.ALL)
@given(data=st.data())
def test_pieces_make_the_whole_text(make, skip, data):
    tokenizer = make()
    highest = tokenizer.get_vocab_size() + 2  # two ids that do not exist: a padded output head
    ids = data.draw(st.lists(st.integers(0, highest), max_size=30))
    assert text_of(tokenizer, ids, skip=skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("make", [zoo.byte_level, zoo.byte_fallback])
@given(text=st.text(max_size=30))
def test_any_text_comes_back_in_whole_characters(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(tokenizer, ids)
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece.text for piece in pieces)


@given(data=st.lists(st.binary(min_size=1, max_size=4), max_size=12))
def test_broken_utf8_is_replaced_as_the_tokenizer_does(data):
    tokenizer = zoo.byte_fallback()
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for run in data for byte in run]
    assert text_of(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("make", zoo.ALL)
@given(data=st.data())
def test_settled_tokens_only_grow_and_pieces_never_point_past_them(make, data):
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=30))
    detokenizer = DetokenizerFactory(tokenizer).create()
    settled = 0
    for count, token_id in enumerate(ids, start=1):
        for piece in detokenizer.push(token_id):
            assert settled <= piece.tokens <= count
        assert settled <= detokenizer.settled <= count
        settled = detokenizer.settled


def test_a_character_belongs_to_the_token_that_completes_it():
    tokenizer = zoo.byte_fallback()
    newline, letter = tokenizer.token_to_id("<0x0A>"), tokenizer.token_to_id("a")
    euro = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    pieces = pieces_of(tokenizer, [letter, newline, *euro, letter])
    assert pieces == [TextPiece("a", 1), TextPiece("\n", 2), TextPiece("€", 5), TextPiece("a", 6)]


def test_half_a_character_waits_and_is_replaced_at_the_end():
    tokenizer = zoo.byte_level()
    ids = tokenizer.encode("日", add_special_tokens=False).ids
    detokenizer = DetokenizerFactory(tokenizer).create()
    pushed = [detokenizer.push(token_id) for token_id in ids[:-1]]
    assert not any(pushed)
    assert detokenizer.flush() == [TextPiece("\ufffd", len(ids) - 1)]


@given(data=st.data())
def test_bytes_of_tokens_put_together_are_the_bytes_of_the_text(data):
    tokenizer = zoo.byte_level()
    vocabulary = DetokenizerFactory(tokenizer)
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 2), max_size=30))
    together = b"".join(vocabulary.bytes_of(token_id) for token_id in ids)
    assert together.decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)


@given(text=st.text(max_size=30))
def test_bytes_of_tokens_with_byte_fallback_differ_by_the_space_at_the_start(text):
    tokenizer = zoo.byte_fallback()
    ids = [i for i in tokenizer.encode(text, add_special_tokens=False).ids if i != 0]  # not <unk>
    together = b"".join(DetokenizerFactory(tokenizer).bytes_of(token_id) for token_id in ids)
    assert together.decode() in (tokenizer.decode(ids), " " + tokenizer.decode(ids))


@pytest.mark.parametrize("make", zoo.ALL)
def test_bytes_of_special_and_of_unknown_tokens(make):
    tokenizer = make()
    vocabulary = DetokenizerFactory(tokenizer)
    end = tokenizer.token_to_id("</s>")
    assert vocabulary.is_special(end) and not vocabulary.is_special(0)
    assert vocabulary.bytes_of(end).strip() == b"</s>"
    assert vocabulary.bytes_of(tokenizer.get_vocab_size() + 1) == b""


def test_a_part_of_a_character_has_its_own_bytes():
    tokenizer = zoo.byte_fallback()
    parts = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    assert b"".join(DetokenizerFactory(tokenizer).bytes_of(part) for part in parts) == "€".encode()
