"""The model's tokenizer, without torch and without `transformers`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.gateway.chat_template import ChatTemplate, load_chat_template
from outrider.gateway.detokenizer import Detokenizer, DetokenizerFactory
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

    async def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain prompt, with the tokens that the model wants at its start."""
        return await self._encode(text, add_special_tokens=True)

    async def encode_chat(self, turns: Sequence[ChatTurn]) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the assistant's answer.

        Raises:
            InvalidRequestError: the model has no chat template, or its template refuses.
        """
        if self._chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template: use completions with a prompt", field="messages"
            )
        return await self._encode(self._chat_template.render(turns), add_special_tokens=False)

    def detokenizer(self) -> Detokenizer:
        """For the tokens of one generation."""
        return self._detokenizers.create()

    async def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        def encode() -> tuple[int, ...]:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

        return encode() if len(text) <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)
