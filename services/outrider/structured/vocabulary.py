"""The tokens of a model as grammars see them: their bytes, and which of them end an output."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer

from outrider.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """A tokenizer, ready for masks over a model's output head."""

    tokenizer: LLTokenizer
    words: int  # of a mask: ceil(V / 32) for V columns of logits
    eos_token_ids: frozenset[int]

    @classmethod
    def load(cls, folder: Path, *, vocab_size: int, eos_token_ids: Collection[int]) -> GrammarVocabulary:
        """The tokenizer of a model folder (tokenizer.json). Takes a moment: some 0.3 s for 50000 tokens.

        Args:
            folder: the model's.
            vocab_size: columns of its logits. Ids past the tokenizer's are never allowed.
            eos_token_ids: its end-of-sequence ids.

        Raises:
            InvalidRequestError: the library cannot read this tokenizer, so no grammar can be followed.
        """
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            size = LLTokenizer(text).vocab_size
            tokenizer = LLTokenizer(
                text, n_vocab=max(size, vocab_size), eos_token=sorted(eos_token_ids) or None
            )
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"grammar cannot be followed with this model's tokenizer: {error}", field="grammar"
            ) from error
        return cls(tokenizer, -(-vocab_size // 32), frozenset(eos_token_ids))

    def end_token_ids(self, stop_token_ids: Collection[int]) -> list[int]:
        """What ends an output: the model's end tokens, and those stop ids of the request that have no text.

        A stop id with text (a newline, say) is part of what the grammar describes: it stops the output where
        the grammar allows it.

        Raises:
            InvalidRequestError: there is none, so an output could never end.
        """
        special = {token for token in stop_token_ids if self.tokenizer.is_special_token(token)}
        ends = sorted(
            token
            for token in self.eos_token_ids | special
            if 0 <= token < min(self.tokenizer.vocab_size, 32 * self.words)
        )
        if not ends:
            raise InvalidRequestError(
                "grammar needs a token to end the output with, and the model has none: "
                "give one without text in stop_token_ids",
                field="grammar",
            )
        return ends
