"""The model's tokenizer, without torch and without `transformers`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from outrider.core.errors import ConfigError, InvalidRequestError, PromptTooLongError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.gateway.chat_template import ChatTemplate, load_chat_template
from outrider.gateway.detokenizer import Detokenizer, DetokenizerFactory
from outrider.gateway.token_bound import most_characters_per_token
from outrider.wire.messages import ChatTurn

_INLINE_CHARACTERS = 1024
"""Longer texts are encoded in a thread: they would hold up every other stream."""


class TextTokenizer:
    """Text to token ids and back, and conversations to text."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, fingerprint: str) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._most_characters = most_characters_per_token(tokenizer)
        self._detokenizers = DetokenizerFactory(tokenizer)
        self.fingerprint = fingerprint

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json` and the chat template of a model folder.

        Raises:
            ConfigError: a file is missing or cannot be read as what it should be.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{folder} holds no tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ConfigError(f"{path} cannot be read: {error}") from error
        return cls(tokenizer, load_chat_template(folder), tokenizer_fingerprint(folder))

    async def encode_prompt(
        self, text: str, *, context_length: int = 0, add_special_tokens: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a plain prompt, with the tokens that the model wants at its start.

        Raises:
            PromptTooLongError: it can never fit the context (0: unbounded), which its length alone tells.
        """
        return await self._encode(text, context_length, add_special_tokens=add_special_tokens)

    async def encode_chat(
        self, turns: Sequence[ChatTurn], *, context_length: int = 0, add_special_tokens: bool = False
    ) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the assistant's answer.

        Raises:
            PromptTooLongError: as `encode_prompt`.
            InvalidRequestError: the model has no chat template, or its template refuses.
        """
        if self._chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template: use completions with a prompt", field="messages"
            )
        return await self._encode(
            self._chat_template.render(turns), context_length, add_special_tokens=add_special_tokens
        )

    def encode_words(self, text: str) -> tuple[int, ...]:
        """Token ids of a short text as it stands, nothing added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """For the tokens of one generation."""
        return self._detokenizers.create(skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of what one token stands for inside a text, maybe part of a character; none if unknown."""
        return self._detokenizers.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """The same as text: U+FFFD for what is no whole character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    async def _encode(self, text: str, context_length: int, *, add_special_tokens: bool) -> tuple[int, ...]:
        most = (context_length - 1) * self._most_characters
        if most > 0 and len(text) > most:
            raise PromptTooLongError(
                f"prompt must hold at most {context_length - 1} tokens (the model's context of "
                f"{context_length} less one to generate); {len(text)} characters are more, whatever they are",
                field="prompt",
            )

        def encode() -> tuple[int, ...]:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

        return encode() if len(text) <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)
