"""Finds tool calls in what a model writes, as it writes it.

However the text is cut into pieces, a reader gives the same text and the same calls.
"""

from outrider.gateway.tool_calls.forced import NamedReader, RequiredReader
from outrider.gateway.tool_calls.formats import ToolFormat, detect
from outrider.gateway.tool_calls.hermes import HermesReader
from outrider.gateway.tool_calls.llama3 import Llama3Reader
from outrider.gateway.tool_calls.mistral import MistralReader
from outrider.gateway.tool_calls.pieces import CallPiece, FirstCallOnly, Piece, ToolCallReader

__all__ = [
    "CallPiece",
    "FirstCallOnly",
    "HermesReader",
    "Llama3Reader",
    "MistralReader",
    "NamedReader",
    "Piece",
    "RequiredReader",
    "ToolCallReader",
    "ToolFormat",
    "detect",
]
