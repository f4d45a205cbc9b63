"""Parameters of OpenAI and vLLM that would change the output, and are not supported yet.

Each is accepted with a value that means "as if it were not there"; any other value is refused, so
that no parameter is ever ignored in silence. Fields that are in no list are ignored, as OpenAI's
clients expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.core.errors import InvalidRequestError

_ABSENT: tuple[Any, ...] = (None,)
_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")
_ONE: tuple[Any, ...] = (None, 1)

_BOTH: dict[str, tuple[Any, ...]] = {
    "guided_whitespace_pattern": _ABSENT,
    "structural_tag": _ABSENT,
    "length_penalty": _ONE,
    "logits_processors": _EMPTY,
    "use_beam_search": _OFF,
    "spaces_between_special_tokens": (None, True),
    "vllm_xargs": _EMPTY,
}
CHAT: dict[str, tuple[Any, ...]] = _BOTH | {
    "echo": _OFF,
    "best_of": _ONE,
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "modalities": (None, [], ["text"]),
    "audio": _ABSENT,
    "prediction": _ABSENT,
    "reasoning_effort": (None, "none"),
    "thinking_token_budget": _ABSENT,
    "verbosity": (None, "medium"),
    "web_search_options": _ABSENT,
}
COMPLETION: dict[str, tuple[Any, ...]] = _BOTH | {
    "suffix": _EMPTY,
    "prompt_embeds": _ABSENT,
}
MESSAGE: dict[str, tuple[Any, ...]] = {
    "function_call": _ABSENT,
    "audio": _ABSENT,
    "refusal": _EMPTY,
}


def refuse(given: Mapping[str, Any] | None, neutral: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Refuse the fields of `given` that are in `neutral` and have none of the values there.

    Raises:
        InvalidRequestError: names the field.
    """
    for name, value in (given or {}).items():
        if name in neutral and not any(_same(value, allowed) for allowed in neutral[name]):
            field = f"{where}{name}"
            raise InvalidRequestError(
                f"{field} is not supported yet: leave it out, or set it to {_spelled(neutral[name])}",
                field=field,
            )


def _same(value: Any, allowed: Any) -> bool:
    """Equal, and not merely because Python takes False for 0 and True for 1."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def _spelled(values: tuple[Any, ...]) -> str:
    names = {None: "null", True: "true", False: "false"}
    return " or ".join(
        names[value] if value is None or isinstance(value, bool) else repr(value) for value in values
    )
