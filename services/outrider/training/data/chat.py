"""The parts of a target's chat template, as token ids, so that the target can write the user's turns too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import transformers

from outrider.core.errors import ConfigError

_USER = "Zq0user0qZ"
_ANSWER = "Zq0answer0qZ"
_FOLLOW_UP = "Zq0follow0qZ"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What stands before, between and after the turns of a chat."""

    before: tuple[int, ...]  # a text up to the user's first turn
    after: tuple[int, ...]  # from the end of a user's turn to the answer
    between: tuple[int, ...]  # from the end of an answer to the user's next turn
    ends: frozenset[int]  # ids that end a turn
    tokenizer: Any

    @classmethod
    def load(cls, folder: Path, eos_token_ids: frozenset[int]) -> ChatFormat:
        """Read the chat template of the model in `folder`.

        Raises:
            ConfigError: there is no tokenizer or chat template, or it drops or changes what it is given.
        """
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(  # a local folder  # nosec B615
                folder, local_files_only=True, trust_remote_code=False
            )
            one = _render(tokenizer, [("user", _USER)])
            two = _render(tokenizer, [("user", _USER), ("assistant", _ANSWER), ("user", _FOLLOW_UP)])
            before, after = one.split(_USER)
            between = two.split(_ANSWER)[1].split(_FOLLOW_UP)[0]
        except (OSError, ValueError, IndexError, jinja2.TemplateError) as error:
            raise ConfigError(
                f"{folder.name} has no chat template that training data can be written with: {error}"
            ) from error
        encoded = [tuple(_encode(tokenizer, text)) for text in (before, after, between)]
        if not encoded[1]:
            raise ConfigError(f"the chat template of {folder.name} does not end the user's turn")
        ends = eos_token_ids | {encoded[1][0]}
        return cls(encoded[0], encoded[1], _without(encoded[2], ends), ends, tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, no special tokens added."""
        return _encode(self.tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()


def _without(token_ids: tuple[int, ...], ends: frozenset[int]) -> tuple[int, ...]:
    """An answer carries its own end: what follows begins after it."""
    return token_ids[1:] if token_ids and token_ids[0] in ends else token_ids


def _render(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
