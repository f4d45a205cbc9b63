"""The command line's client: one generation over gRPC, with what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from grpc import aio

from outrider.core.errors import OutriderError, ProtocolError
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire import channels, services
from outrider.wire.convert import generation_event_from_proto, generation_request_to_proto
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationDelta, GenerationFinished, GenerationRequest, GenerationStarted
from outrider.wire.v1 import generation_pb2 as pb

CALL_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Generation:
    """A finished generation. Times are seconds since it was asked for."""

    model: str = ""
    seed: int = 0
    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP
    usage: Usage = field(default_factory=Usage)
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    first_s: float = 0.0  # when the first tokens were there
    first_tokens: int = 0  # how many they were
    last_s: float = 0.0  # when the last tokens were there

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding: what came after the first delivery, over its time; 0 if nothing did."""
        seconds = self.last_s - self.first_s
        return (len(self.token_ids) - self.first_tokens) / seconds if seconds > 0 else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Delivered tokens per verification step."""
        rounds = self.speculation.rounds
        return len(self.token_ids) / rounds if rounds else 0.0


class GatewayClient:
    """A connection to a gateway's gRPC address; an async context manager."""

    def __init__(self, address: str) -> None:
        self._channel: aio.Channel = channels.open_channel(address)
        self._client = services.generation_client(self._channel)

    async def __aenter__(self) -> GatewayClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def model(self) -> str:
        """Name of the model served there.

        Raises:
            OutriderError: as the gateway's status says.
        """
        try:
            answer = await self._client.ListModels(pb.ListModelsRequest(), timeout=10.0)
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        if not answer.models:
            raise ProtocolError("the gateway serves no model")
        return answer.models[0].model_name

    async def generate(
        self,
        request: GenerationRequest,
        on_delta: Callable[[GenerationDelta], None],
        *,
        draw_seed: bool = False,
    ) -> Generation:
        """Run one generation to its end.

        Args:
            request: what to generate.
            on_delta: called with each delta when it is there.
            draw_seed: let the gateway draw a seed, whatever the request says.

        Raises:
            OutriderError: as the gateway's status says.
        """
        message = generation_request_to_proto(request)
        if draw_seed:
            message.sampling.ClearField("seed")
        done = Generation()
        start = time.perf_counter()
        try:
            async for response in self._client.Generate(message, timeout=CALL_TIMEOUT_S):
                event = generation_event_from_proto(response)
                if isinstance(event, GenerationDelta):
                    _count(done, event, time.perf_counter() - start)
                    on_delta(event)
                elif isinstance(event, GenerationStarted):
                    done.model, done.seed = event.model, event.seed
                elif isinstance(event, GenerationFinished):
                    _finish(done, event)
        except aio.AioRpcError as error:
            raise _explained(from_rpc_error(error)) from None
        return done


def _count(done: Generation, delta: GenerationDelta, now: float) -> None:
    if not delta.token_ids:
        return
    if not done.token_ids:
        done.first_s, done.first_tokens = now, len(delta.token_ids)
    done.last_s = now
    done.token_ids += delta.token_ids


def _finish(done: Generation, event: GenerationFinished) -> None:
    done.reason, done.usage, done.speculation = event.reason, event.usage, event.speculation


def _explained(error: OutriderError) -> OutriderError:
    field_name = getattr(error, "field", None)
    return type(error)(f"{field_name}: {error}") if field_name and field_name not in str(error) else error
