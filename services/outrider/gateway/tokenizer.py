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
from outrider.gateway.tool_calls import ToolFormat
from outrider.wire.messages import ChatTurn, Conversation, PromptInput

_INLINE_CHARACTERS = 1024
"""Longer texts are encoded in a thread: they would hold up every other stream."""
_INLINE_MESSAGES = 16
"""Conversations of more, or with tools, are laid out in a thread, for the same reason."""


class TextTokenizer:
    """Text to token ids and back, and conversations to text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        fingerprint: str,
        *,
        tool_format: ToolFormat | None = None,
        trust_templates: bool = False,
    ) -> None:
        """`tool_format`: not what the template tells; `trust_templates`: requests may bring their own."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._tool_format = tool_format
        self._trust_templates = trust_templates
        self._most_characters = most_characters_per_token(tokenizer)
        self._detokenizers = DetokenizerFactory(tokenizer)
        self.fingerprint = fingerprint

    @classmethod
    def load(
        cls, folder: Path, *, tool_format: ToolFormat | None = None, trust_templates: bool = False
    ) -> TextTokenizer:
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
        return cls(
            tokenizer,
            load_chat_template(folder),
            tokenizer_fingerprint(folder),
            tool_format=tool_format,
            trust_templates=trust_templates,
        )

    async def encode_prompt(
        self, text: str, *, context_length: int = 0, add_special_tokens: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a plain prompt, with the tokens that the model wants at its start.

        Raises:
            PromptTooLongError: it can never fit the context (0: unbounded), which its length alone tells.
        """
        return await self._encode(text, context_length, add_special_tokens=add_special_tokens)

    async def encode_chat(
        self,
        chat: Sequence[ChatTurn] | Conversation,
        *,
        context_length: int = 0,
        add_special_tokens: bool = False,
    ) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the assistant's answer.

        Raises:
            PromptTooLongError: as `encode_prompt`.
            InvalidRequestError: there is no template, it refuses, or the model's calls could not be read.
        """
        conversation = chat if isinstance(chat, Conversation) else _conversation(chat)
        template = self._template(conversation.template)
        large = len(conversation.messages) > _INLINE_MESSAGES
        if large or conversation.tools or conversation.documents:
            text = await asyncio.to_thread(template.render, conversation)
        else:
            text = template.render(conversation)
        if conversation.reads_calls and self.tool_format(conversation.template) is None:
            raise InvalidRequestError(
                "this model's chat template tells no format of tool calls that is known here, so its calls "
                'could not be read: set tool_choice to "required" or to a function, or gateway.tool_parser',
                field="tools",
            )
        return await self._encode(text, context_length, add_special_tokens=add_special_tokens)

    def tool_format(self, template: str | None = None) -> ToolFormat | None:
        """How the model writes calls; None if that is not known. `template`: the request's own.

        Raises:
            InvalidRequestError: there is no template, or the request's is not accepted.
        """
        return self._tool_format or self._template(template).tool_format

    def shows_special_tokens(self, chat: PromptInput) -> bool:
        """Whether the answer's text needs its special tokens, since one of them marks a call."""
        if not isinstance(chat, Conversation) or not chat.reads_calls:
            return False
        tool_format = self.tool_format(chat.template)
        if tool_format is None:
            return False
        token_id = self._tokenizer.token_to_id(tool_format.marker)
        return token_id is not None and self.is_special(token_id)

    def encode_words(self, text: str) -> tuple[int, ...]:
        """Token ids of a short text as it stands, nothing added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """For the tokens of one generation."""
        return self._detokenizers.create(skip_special_tokens=skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """Whether texts leave the token out, unless they are to have it."""
        return self._detokenizers.is_special(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of what one token stands for inside a text, maybe part of a character; none if unknown."""
        return self._detokenizers.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """The same as text: U+FFFD for what is no whole character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _template(self, own: str | None) -> ChatTemplate:
        if own is not None and not self._trust_templates:
            raise InvalidRequestError(
                "chat_template is not accepted: this gateway uses the model's own "
                "(gateway.trust_request_chat_template)",
                field="chat_template",
            )
        if self._chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template: use completions with a prompt", field="messages"
            )
        return self._chat_template if own is None else self._chat_template.replaced(own)

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


def _conversation(turns: Sequence[ChatTurn]) -> Conversation:
    return Conversation(tuple({"role": turn.role, "content": turn.content} for turn in turns))
