"""Which format a model writes its calls in, as its chat template tells."""

from __future__ import annotations

import enum
from collections.abc import Collection

from outrider.gateway.tool_calls import hermes, llama3, mistral
from outrider.gateway.tool_calls.hermes import HermesReader
from outrider.gateway.tool_calls.llama3 import Llama3Reader
from outrider.gateway.tool_calls.mistral import MistralReader
from outrider.gateway.tool_calls.pieces import ToolCallReader


class ToolFormat(enum.Enum):
    """Formats that can be read, by the names that vLLM's parsers have."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"

    @property
    def marker(self) -> str:
        """What begins a call; where it is a special token, text must keep special tokens."""
        return _MARKERS[self]

    def reader(self, offered: Collection[str]) -> ToolCallReader:
        """For one answer; `offered` are the names of the tools."""
        if self is ToolFormat.LLAMA3_JSON:
            return Llama3Reader(offered)
        return MistralReader() if self is ToolFormat.MISTRAL else HermesReader()


_MARKERS = {
    ToolFormat.HERMES: hermes.START,
    ToolFormat.LLAMA3_JSON: llama3.MARKER,
    ToolFormat.MISTRAL: mistral.MARKER,
}
_OTHERS_BODIES = ("<function=", "<arg_key>")
"""Within the same marker: Qwen3-Coder and GLM, which do not write JSON."""


def detect(template: str) -> ToolFormat | None:
    """The format that a chat template asks for; None if it is none of these."""
    if hermes.START in template:
        return None if any(body in template for body in _OTHERS_BODIES) else ToolFormat.HERMES
    if mistral.MARKER in template:
        return ToolFormat.MISTRAL
    if llama3.MARKER in template or ('"name": function name' in template and '"parameters"' in template):
        return ToolFormat.LLAMA3_JSON
    return None
