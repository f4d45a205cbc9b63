"""Text keeps its meaning on its way between two tokenizers, however it arrives."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.drafting.foreign.context import DraftContext
from outrider.drafting.foreign.renaming import rename
from outrider.drafting.foreign.shared_ids import shared_ids
from outrider.drafting.foreign.token_texts import TokenTexts
from tests.foreign_tokenizers import CORPUS, byte_level, characters, content, llama_like, unigram

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: byte_level(259),
    "bpe": lambda: byte_level(400),
    "unigram": unigram,
    "llama": llama_like,
    "characters": lambda: characters(1),
}
TEXTS = {name: TokenTexts(content(make())) for name, make in KINDS.items()}
PAIRS = [
    *(("bpe", "bytes"), ("bytes", "bpe"), ("bpe", "unigram"), ("bpe", "llama")),
    *(("llama", "bpe"), ("unigram", "bpe"), ("characters", "bpe"), ("unigram", "llama")),
]


def text_of(texts: TokenTexts, ids: list[int]) -> str:
    return b"".join(map(texts.bytes_of, ids)).decode(errors="replace")


def read(target: TokenTexts, draft: TokenTexts, ids: list[int], cuts: list[int]) -> DraftContext:
    context = DraftContext(target, draft)
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        before = list(context.ids)
        same = context.take(ids[start:stop])
        assert context.ids[:same] == before[:same]
    return context


@pytest.mark.parametrize("name", KINDS)
def test_bytes_of_tokens_are_the_text(name: str) -> None:
    texts = TEXTS[name]
    text = CORPUS if name == "bpe" else "The quick brown fox jumps over the lazy dog."
    ids, ends = texts.encode(text)
    assert text_of(texts, ids).removeprefix(" ") == text
    assert ends[-1] == len(text)


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
def test_in_pieces_is_as_at_once(target_name: str, draft_name: str) -> None:
    target, draft = TEXTS[target_name], TEXTS[draft_name]
    text = "The quick brown fox jumps over the lazy dog. The drafter rides ahead; the verifier checks. " * 8
    ids, _ = target.encode(text)
    whole, _ = draft.encode(text)
    expected = [*draft.lead, *whole]
    source = random.Random(7)
    for size in (1, 3, 40):
        cuts = sorted(source.sample(range(1, len(ids)), (len(ids) - 1) // size))
        context = read(target, draft, ids, cuts)
        assert context.ids == expected
        assert context.taken == len(ids)


def test_a_long_session_encodes_no_more_than_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = TEXTS["bpe"], TEXTS["bytes"]
    ids, _ = target.encode("the lazy dog jumps over the fox. " * 300)
    longest = []
    encode = TokenTexts.encode
    monkeypatch.setattr(
        TokenTexts, "encode", lambda self, text: (longest.append(len(text)), encode(self, text))[1]
    )
    context = DraftContext(target, draft)
    for token_id in ids:
        context.take([token_id])
    assert max(longest) < 100
    assert text_of(draft, context.ids) == text_of(target, ids)


def test_half_a_character_is_held_back_until_it_is_whole() -> None:
    target, draft = TEXTS["bytes"], TEXTS["bpe"]
    ids, _ = target.encode("aß€😀")
    context = DraftContext(target, draft)
    seen = []
    for token_id in ids:
        context.take([token_id])
        seen.append((text_of(draft, context.ids), context.held))
    texts = [text for text, _ in seen]
    assert texts == ["a", "a", "aß", "aß", "aß", "aß€", "aß€", "aß€", "aß€", "aß€😀"]
    assert seen[1][1] == b"\xc3" and seen[4][1] == b"\xe2\x82" and seen[-1][1] == b""


def test_bytes_that_are_no_text_do_no_harm() -> None:
    target, draft = TEXTS["bytes"], TEXTS["bpe"]
    byte_id = {target.bytes_of(token_id): token_id for token_id in target.ids()}
    ids = [byte_id[bytes([byte])] for byte in (0x61, 0xFF, 0xE2, 0x62, 0x80)]
    context = DraftContext(target, draft)
    context.take(ids)
    assert text_of(draft, context.ids) == "a��b�"


def test_tokens_past_the_embeddings_become_text() -> None:
    """A prompt that names one would fail the draft model's step for every session."""
    tokenizer = byte_level(400)
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<|late|>"])
    tokenizer.add_tokens(["rides ahead"])
    target, draft = TokenTexts(content(tokenizer)), TokenTexts(content(tokenizer), size)
    text = "The drafter rides ahead"
    late = target.special_id("<|late|>")
    assert late is not None and late >= size and max(target.encode(text)[0]) >= size
    context = DraftContext(target, draft)
    context.take([late, *target.encode(text)[0], late])
    assert max(context.ids) < size
    assert text_of(draft, context.ids) == f"<|late|>{text}<|late|>"


def test_special_tokens_keep_their_name_or_become_text() -> None:
    target, same, other = TEXTS["bpe"], TEXTS["characters"], TEXTS["unigram"]
    turn = target.special_id("<|im_start|>")
    assert turn is not None
    user, _ = target.encode("user\nfox")
    context = DraftContext(target, same)
    context.take([turn, *user])
    assert context.ids[0] == same.special_id("<|im_start|>")
    assert text_of(same, context.ids[1:]) == "user\nfox"
    plain, _ = target.encode("<|im_start|>")  # somebody wrote it: it is no special token
    assert turn not in plain
    context = DraftContext(target, same)
    context.take(plain)
    assert same.special_id("<|im_start|>") not in context.ids
    context = DraftContext(target, other)
    context.take([turn, *target.encode("fox")[0]])
    assert context.ids[0] == other.special_id("<s>")  # its own lead


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
def test_a_right_draft_is_a_prefix_of_what_the_target_would_say(target_name: str, draft_name: str) -> None:
    """From each token's end of a text, the draft model foretells the rest of it."""
    target, draft = TEXTS[target_name], TEXTS[draft_name]
    text = "The quick brown fox jumps over the lazy dog. The drafter rides ahead"
    ids, _ = target.encode(text)
    useful = 0
    for cut in range(1, len(ids)):
        context = DraftContext(target, draft)
        context.take(ids[:cut])
        said = context.held + b"".join(map(target.bytes_of, ids[cut:]))
        drafted = [word.encode() for word in re.findall(r"\s*\S+", said.decode())[:3]]
        renamed = rename(target, ids[:cut], drafted, [0.5] * len(drafted), held=context.held)
        assert list(renamed.token_ids) == ids[cut : cut + len(renamed.token_ids)]
        assert len(renamed.confidences) == len(renamed.token_ids)
        useful += len(renamed.token_ids) > 0
    assert useful > len(ids) // 2


def test_the_last_token_is_not_proposed_unless_the_draft_ended() -> None:
    target = TEXTS["bpe"]
    committed, _ = target.encode("The quick")
    whole, _ = target.encode("The quick brown fox")
    drafted = [b" brown", b" ", b"fox"]
    open_end = rename(target, committed, drafted, [0.5, 0.5, 0.25])
    ended = rename(target, committed, drafted, [0.5, 0.5, 0.25], ended=True)
    assert list(ended.token_ids) == whole[len(committed) :]
    assert open_end.token_ids == ended.token_ids[:-1]


def test_confidences_are_products_over_the_draft_tokens_that_begin_in_a_token() -> None:
    target = TEXTS["characters"]
    committed, _ = target.encode("a")
    renamed = rename(target, committed, [b"bc", b"d", b"e"], [0.5, 0.25, 1.0])
    assert text_of(target, list(renamed.token_ids)) == "bcd"
    assert renamed.confidences == (0.5, 1.0, 0.25)


def test_a_draft_of_another_character_than_the_one_begun_is_nothing() -> None:
    target = TEXTS["bytes"]
    ids, _ = target.encode("aß")
    held = b"\xc3"
    assert rename(target, ids[:-1], ["ß".encode(), b"x"], [1.0, 1.0], held=held).token_ids == (ids[-1],)
    assert rename(target, ids[:-1], [b"x", b"y"], [1.0, 1.0], held=held).token_ids == ()


def test_shared_ids_are_those_of_the_same_text() -> None:
    target, draft = TEXTS["llama"], TEXTS["bpe"]
    shared = shared_ids(target, draft, target_size=10**6, draft_size=10**6)
    pairs = list(zip(shared.target.tolist(), shared.draft.tolist(), strict=True))
    assert len(pairs) > 60 and sorted(pairs) == pairs
    for ours, theirs in pairs:
        assert target.bytes_of(ours) == draft.bytes_of(theirs)
    by_text = {target.bytes_of(ours): theirs for ours, theirs in pairs}
    assert b" the" in by_text and b"\n" in by_text and "ö".encode() not in by_text
    assert len(set(shared.target.tolist())) == len(set(shared.draft.tolist())) == len(pairs)
    few = shared_ids(target, draft, target_size=300, draft_size=100)
    assert max(few.target.tolist()) < 300 and max(few.draft.tolist()) < 100


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.lists(st.binary(min_size=1, max_size=6), max_size=6), st.sampled_from(PAIRS))
def test_nothing_that_comes_in_breaks_it(text: str, drafted: list[bytes], pair: tuple[str, str]) -> None:
    target, draft = TEXTS[pair[0]], TEXTS[pair[1]]
    ids, _ = target.encode(text)
    context = DraftContext(target, draft)
    for token_id in ids:
        context.take([token_id])
    size = max(target.ids()) + 1
    for ended in (False, True):
        renamed = rename(target, ids, drafted, [0.5] * len(drafted), held=context.held, ended=ended)
        assert all(0 <= token_id < size for token_id in renamed.token_ids)
        assert all(0.0 <= own <= 1.0 for own in renamed.confidences)
