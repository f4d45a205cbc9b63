"""Where the turns of a conversation stand in a chat template, as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from outrider.core.errors import ConfigError

_QUESTION, _ANSWER, _SECOND = "QQQ", "AAA", "SSS"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What stands around the texts of a conversation."""

    before_question: tuple[int, ...]  # from the beginning to the user's first words
    before_answer: tuple[int, ...]  # from the end of these to the assistant's first words
    before_next: tuple[int, ...]  # from the end of an answer to the user's next words


class Texts:
    """A model's tokenizer and chat template, for inventing conversations."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError: the folder has no tokenizer or no chat template."""
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"the tokenizer of {folder} cannot be read: {error}") from error
        if not self._tokenizer.chat_template:
            raise ConfigError(f"{folder} has no chat template, so no conversations can be invented with it")
        self.frame = self._frame()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, without special tokens."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _frame(self) -> ChatFrame:
        turns = [
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _SECOND},
        ]
        text: str = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        try:
            before, rest = text.split(_QUESTION)
            middle, rest = rest.split(_ANSWER)
            after, _ = rest.split(_SECOND)
        except ValueError as error:
            raise ConfigError("the chat template does not show each message once") from error
        return ChatFrame(tuple(self.encode(before)), tuple(self.encode(middle)), tuple(self.encode(after)))
