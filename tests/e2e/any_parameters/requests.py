"""Random requests: any parameters of the HTTP API, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.e2e.any_parameters.adversaries import NAMES

VOCABULARY = 512
CONTEXT = 256
DRAFTERS = ("twin", "other", "lookup", *NAMES)

PROMPTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "What is the capital of France?",
    "one two one two one two one two one",
    "def add(first, second): return first + second\n" * 3,
    "é 漢字 🙂",
    "a",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_tokens = st.integers(0, VOCABULARY - 1)
_words = st.sampled_from((" the", "the", "e", "a", " ", "\n", "fox", " in", "one", "\u00e9", "!", "qu"))

_GRAMMARS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    (
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"regex": "[a-f]{3,8}( [0-9]+)*"}},
        {"structured_outputs": {"choice": ["the fox", "the dog", "the foxes", "nothing"]}},
        {"structured_outputs": {"grammar": 'root ::= ("ab" | "cd" | "a c")+ "."'}},
    )
)


@st.composite
def _fields(draw: st.DrawFn, names: tuple[str, ...], table: dict[str, Any]) -> dict[str, Any]:
    """Some of the fields: mostly few at once, sometimes all."""
    chosen = draw(st.lists(st.sampled_from(names), max_size=len(names), unique=True))
    return {name: draw(table[name]) for name in chosen}


_BOTH: dict[str, st.SearchStrategy[Any]] = {
    "top_k": st.integers(-1, 60),
    "top_p": st.floats(0.05, 1.0),
    "min_p": st.floats(0.0, 1.0),
    "typical_p": st.floats(0.05, 1.0),
    "presence_penalty": st.floats(-2.0, 2.0),
    "frequency_penalty": st.floats(-2.0, 2.0),
    "repetition_penalty": st.floats(0.3, 2.0),
    "logit_bias": st.dictionaries(_tokens.map(str), st.floats(-100, 100), max_size=6),
    "allowed_token_ids": st.lists(_tokens, min_size=1, max_size=40, unique=True),
    "bad_words": st.lists(_words.filter(str.strip), max_size=4),
    "stop": st.lists(_words, max_size=3),
    "stop_token_ids": st.lists(_tokens, max_size=60, unique=True),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "cache_salt": st.sampled_from(("a", "b")),
    "prompt_logprobs": st.integers(0, 3),
    "n": st.integers(1, 3),
    "return_tokens_as_token_ids": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from((-1, 1, 5, 30)),
    "add_special_tokens": st.booleans(),
}
_MAY_FAIL = {"response_format", "structured_outputs", "allowed_token_ids", "bad_words", "min_tokens"}
_CHAT = _BOTH | {"logprobs": st.just(True)}
_COMPLETION = _BOTH | {"logprobs": st.integers(0, 5), "echo": st.booleans()}


@dataclass(frozen=True)
class Asked:
    """One request, and how it is asked for each time."""

    route: str
    body: dict[str, Any]
    drafter: str
    max_draft_tokens: int | None
    streams: tuple[bool, bool]  # with speculation off, and on

    def off(self) -> dict[str, Any]:
        """The body with speculation turned off."""
        return self._body({"enabled": False}, self.streams[0])

    def on(self, seed: int | None) -> dict[str, Any]:
        """The body with its drafter, and the seed that was in force."""
        speculation: dict[str, Any] = {"drafter": self.drafter}
        if self.max_draft_tokens is not None:
            speculation["max_draft_tokens"] = self.max_draft_tokens
        body = self._body(speculation, self.streams[1])
        return body if seed is None else body | {"seed": seed}

    def _body(self, speculation: dict[str, Any], stream: bool) -> dict[str, Any]:
        body = self.body | {"model": "tiny", "speculation": speculation, "return_token_ids": True}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """Any request."""
    chat = draw(st.booleans())
    table = _CHAT if chat else _COMPLETION
    body: dict[str, Any] = draw(_fields(tuple(table), table))
    body["temperature"] = draw(st.one_of(st.just(0), st.just(1), st.floats(0.05, 3.0)))
    body["max_tokens"] = draw(st.integers(1, 24))
    if draw(st.integers(0, 3)) == 0:
        body |= draw(_GRAMMARS)
    if draw(st.integers(0, 3)) == 0:
        body["min_tokens"] = draw(st.integers(0, body["max_tokens"]))
    # A request that may come to a token where nothing is allowed must say its seed: errors do not tell it.
    if draw(st.booleans()) or not _MAY_FAIL.isdisjoint(body):
        body["seed"] = draw(st.integers(-(2**63), 2**64 - 1))
    if chat:
        body["messages"] = [{"role": "user", "content": draw(st.sampled_from(PROMPTS))}]
        if "logprobs" in body and draw(st.booleans()):
            body["top_logprobs"] = draw(st.integers(0, 5))
    else:
        body["prompt"] = draw(_prompt(body["max_tokens"]))
    return Asked(
        "/v1/chat/completions" if chat else "/v1/completions",
        body,
        draw(st.sampled_from(DRAFTERS)),
        draw(st.one_of(st.none(), st.integers(0, 12))),
        (draw(st.booleans()), draw(st.booleans())),
    )


@st.composite
def _prompt(draw: st.DrawFn, max_tokens: int) -> str | list[int] | list[str]:
    """Text, several texts, ids, or ids that leave just room for `max_tokens`."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.lists(_tokens, min_size=1, max_size=40))
    if kind == 1:
        piece = draw(st.lists(_tokens, min_size=1, max_size=12))
        return (piece * CONTEXT)[: CONTEXT - max_tokens]
    if kind == 2:
        return draw(st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=2))
    return draw(st.sampled_from(PROMPTS))
