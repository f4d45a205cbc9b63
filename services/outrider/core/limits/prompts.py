"""Bounds of a prompt, alone and with what comes after it."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.errors import InvalidRequestError, PromptTooLongError
from outrider.core.limits.values import quoted, token_ids


def check_prompt(prompt: Sequence[int], *, vocab_size: int, context_length: int) -> None:
    """A prompt is not empty, of known ids, and leaves room for at least one token.

    A `vocab_size` or `context_length` of 0 means unbounded, as in ModelInfo.

    Raises:
        PromptTooLongError: the prompt alone fills the context.
    """
    if not prompt:
        raise InvalidRequestError("prompt must hold at least one token, got none", field="prompt")
    if context_length and len(prompt) >= context_length:
        raise PromptTooLongError(
            f"prompt must hold at most {context_length - 1} tokens (the model's context of {context_length} "
            f"less one to generate), got {len(prompt)}",
            field="prompt",
        )
    token_ids("prompt", (min(prompt), max(prompt)), vocab_size=vocab_size)


def check_generated(field: str, tokens: Sequence[int], *, vocab_size: int) -> None:
    """Generated tokens that a caller has are of known ids (`vocab_size` 0: unbounded); there may be none."""
    if tokens:
        token_ids(field, (min(tokens), max(tokens)), vocab_size=vocab_size)


def check_length(prompt_tokens: int, max_tokens: int, *, context_length: int) -> None:
    """Prompt and `max_tokens` together fit the context (0: unbounded).

    Raises:
        PromptTooLongError: they do not.
    """
    if context_length and prompt_tokens + max_tokens > context_length:
        raise PromptTooLongError(
            f"max_tokens must be at most {context_length - prompt_tokens} after a prompt of {prompt_tokens} "
            f"tokens (the model's context is {context_length}), got {quoted(max_tokens)}",
            field="max_tokens",
        )
