"""Bounds of what changes logits. Ranges are OpenAI's where it has one, else wide enough for vLLM's users."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.grammars import check_grammar
from outrider.core.limits.values import count, encodable, integer, number, token_ids
from outrider.core.params import LogitEdits

MAX_PENALTY = 2.0
"""Of frequency_penalty and presence_penalty, either way."""
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_ALLOWED_TOKEN_IDS = 16384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 128
MAX_BAD_WORD_SEQUENCES = 4 * MAX_BAD_WORDS
"""A word becomes two sequences (at the start of a text, and after a space); a client may send more."""
MAX_BAD_WORD_TOKENS = 4 * MAX_BAD_WORD_CHARS + 8
"""A character may take a token for each of its UTF-8 bytes, and a space or a prefix comes on top."""
MAX_END_TOKEN_IDS = 8192

_PLAIN = LogitEdits()


def check_edits(edits: LogitEdits, *, vocab_size: int | None = None) -> None:
    """Bounds of every field; ids are checked against `vocab_size` if it is given."""
    if edits == _PLAIN:
        return
    number("repetition_penalty", edits.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    number("frequency_penalty", edits.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    number("presence_penalty", edits.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    integer("min_tokens", edits.min_tokens, 0, 2**31 - 1)
    count("end_token_ids", edits.end_token_ids, MAX_END_TOKEN_IDS)
    token_ids("end_token_ids", edits.end_token_ids, vocab_size=None)
    count("allowed_token_ids", edits.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
    token_ids("allowed_token_ids", edits.allowed_token_ids, vocab_size=vocab_size)
    _check_bias(edits.logit_bias, vocab_size)
    _check_sequences(edits.bad_words, vocab_size)
    if edits.grammar is not None:
        check_grammar(edits.grammar)


def check_bad_words(words: Sequence[str]) -> None:
    """Bounds of bad_words as text: how many, and how long each."""
    count("bad_words", words, MAX_BAD_WORDS)
    for word in words:
        if not isinstance(word, str) or not 1 <= len(word) <= MAX_BAD_WORD_CHARS:
            raise InvalidRequestError(
                f"bad_words must hold strings of 1 to {MAX_BAD_WORD_CHARS} characters", field="bad_words"
            )
        encodable("bad_words", word)


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """There is room for that many tokens."""
    if min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most max_tokens ({max_tokens}), got {min_tokens}", field="min_tokens"
        )


def _check_bias(bias: Sequence[tuple[int, float]], vocab_size: int | None) -> None:
    count("logit_bias", bias, MAX_LOGIT_BIAS_ENTRIES)
    ids = [token_id for token_id, _ in bias]
    token_ids("logit_bias", ids, vocab_size=vocab_size)
    if len(set(ids)) != len(ids):
        raise InvalidRequestError("logit_bias must hold each token id once", field="logit_bias")
    for _, added in bias:
        number("logit_bias", added, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


def _check_sequences(sequences: Sequence[Sequence[int]], vocab_size: int | None) -> None:
    count("bad_words", sequences, MAX_BAD_WORD_SEQUENCES)
    for sequence in sequences:
        if not 1 <= len(sequence) <= MAX_BAD_WORD_TOKENS:
            raise InvalidRequestError(
                f"bad_words must hold sequences of 1 to {MAX_BAD_WORD_TOKENS} tokens, "
                f"got one of {len(sequence)}",
                field="bad_words",
            )
        token_ids("bad_words", sequence, vocab_size=vocab_size)
