"""A client of a gateway's gRPC API (`outrider.v1.Generation`), blocking and for asyncio.

    from outrider.client import Client

    with Client("127.0.0.1:9000") as client:
        print(client.generate("The quick brown", max_tokens=16).text)

Every call has a deadline, and all that goes wrong is an OutriderError.
"""

from outrider.client.blocking import Client, Stream
from outrider.client.connection import Connection
from outrider.client.for_asyncio import AsyncClient, AsyncStream
from outrider.client.options import Options, Prompt
from outrider.client.results import Result
from outrider.client.tls import tls_credentials
from outrider.core.errors import OutriderError
from outrider.core.models import ModelInfo
from outrider.core.params import Acceptance, Grammar, GrammarKind, TokenLogprobs
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire.messages import (
    ChatTurn,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    PromptLogprobs,
)

__all__ = [
    "Acceptance",
    "AsyncClient",
    "AsyncStream",
    "ChatTurn",
    "Client",
    "Connection",
    "FinishReason",
    "GenerationDelta",
    "GenerationEvent",
    "GenerationFinished",
    "GenerationStarted",
    "Grammar",
    "GrammarKind",
    "ModelInfo",
    "Options",
    "OutriderError",
    "Prompt",
    "PromptLogprobs",
    "Result",
    "SpeculationStats",
    "Stream",
    "TokenLogprobs",
    "Usage",
    "tls_credentials",
]
