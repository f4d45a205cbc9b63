"""A gateway over several scripted verifiers that share their store, and what its client saw."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from outrider.core.errors import OutriderError, UnavailableError
from outrider.core.params import TokenLogprobs
from outrider.wire import channels, convert, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationDelta, GenerationFinished, GenerationStarted, PromptLogprobs
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of, say
from tests.integration.gateway.scripted_verifier import Break, ScriptedVerifier, running

TEXT = "the quick brown fox jumps over the lazy dog"
IDS = ids_of(TEXT)
ROUNDS = len(say(TEXT))
LOST = UnavailableError("lost")
MAX = {"stop": {"max_tokens": len(IDS)}}
FAST = {"probe_s": 0.02, "failover_s": 20}


@dataclass
class Seen:
    """What one client got; that it is one sequence without gap or overlap is checked on the way."""

    started: GenerationStarted | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    accepted: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: GenerationFinished | None = None

    def take(self, event) -> None:
        assert self.finished is None
        match event:
            case GenerationStarted():
                assert self.started is None
                self.started = event
            case PromptLogprobs():
                assert not self.token_ids
                assert event.first_position == len(self.prompt_logprobs) + 1
                self.prompt_logprobs += event.entries
            case GenerationDelta():
                assert event.first_token == len(self.token_ids)
                self.text += event.text
                self.token_ids += event.token_ids
                self.accepted += event.accepted
                self.logprobs += event.logprobs
            case GenerationFinished():
                self.finished = event

    @property
    def view(self):
        """All that must not depend on which verifiers ran it."""
        return (
            self.text,
            self.token_ids,
            self.logprobs,
            self.prompt_logprobs,
            self.finished.reason,
            self.finished.usage.completion_tokens,
            self.finished.usage.prompt_tokens,
        )


@dataclass
class Several:
    """What runs."""

    verifiers: list[ScriptedVerifier]
    client: services.GenerationClient
    http: httpx.AsyncClient
    stop: asyncio.Event

    async def generate(self, **asked) -> Seen:
        """Run one request to its end.

        Raises:
            OutriderError: as the gateway told it.
        """
        seen = Seen()
        async for event in self.stream(**asked):
            seen.take(event)
        assert seen.finished is not None
        return seen

    async def stream(self, **asked):
        """Events of one request."""
        call = self.client.Generate(pb.GenerateRequest(**{"prompt": "hello", **asked}))
        try:
            async for event in call:
                yield convert.generation_event_from_proto(event)
        except channels.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    async def metric(self, name: str, **labels: str) -> float:
        """A metric's value, summed over the labels not given."""
        page = (await self.http.get("/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def healthy(self, *reasons: str) -> None:
        """Wait until the gateway gives these reasons for being degraded, and no other."""
        async with asyncio.timeout(20):
            while tuple((await self.http.get("/health")).json()["reasons"]) != reasons:
                await asyncio.sleep(0.01)

    @property
    def busy(self) -> ScriptedVerifier:
        """The one verifier where something runs."""
        (verifier,) = [verifier for verifier in self.verifiers if verifier.running]
        return verifier

    def other(self, than: ScriptedVerifier) -> ScriptedVerifier:
        """The one that is not `than`."""
        (verifier,) = [verifier for verifier in self.verifiers if verifier is not than]
        return verifier


@asynccontextmanager
async def several(model_folder, verifiers, grace_s: float = 5.0, **gateway):
    """A gateway over `verifiers`, which share their store; it has found all of them."""
    async with AsyncExitStack() as stack:
        for verifier in verifiers:
            verifier.store = verifiers[0].store
        addresses = [await stack.enter_async_context(running(verifier)) for verifier in verifiers]
        config = config_for(model_folder, *addresses, **{**FAST, **gateway})
        up, _, stop = await stack.enter_async_context(gateway_over(config, grace_s))
        channel = channels.open_channel(up["grpc"])
        stack.push_async_callback(channel.close)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=up["http"], timeout=30))
        set_up = Several(list(verifiers), services.generation_client(channel), http, stop)
        await set_up.healthy()
        yield set_up


async def forever() -> None:
    await asyncio.Event().wait()


def break_first(setup, after: int, error: OutriderError | None = LOST) -> None:
    """The stream that comes first breaks, wherever it runs; those after it do not."""
    plan = [Break(after, error)]
    for verifier in setup.verifiers:
        verifier.breaks = plan
