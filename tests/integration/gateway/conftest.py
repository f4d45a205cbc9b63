"""A real gateway over a scripted verifier, and clients for it."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import openai
import pytest

from outrider.config.schema import OutriderConfig
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.gateway.server import serve
from outrider.wire import channels, services
from tests.integration.gateway.scripted_verifier import ScriptedVerifier, info_for, running
from tests.unit.gateway import tokenizers_zoo as zoo

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
    "{% if messages[-1].content == 'refuse' %}{{ raise_exception('no such talk') }}{% endif %}"
)


@dataclass
class Stack:
    """Addresses and parts of what runs."""

    http: str
    grpc: str
    verifier: ScriptedVerifier
    stop: asyncio.Event
    serving: asyncio.Task

    def sdk(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.http}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A model folder with a tokenizer and a template, and weights that nobody reads."""
    folder = tmp_path_factory.mktemp("model")
    zoo.byte_level().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def say(text: str, size: int = 3):
    """Rounds that spell `text`, `size` tokens each, all but the last of each drafted."""
    ids = zoo.byte_level().encode(text, add_special_tokens=False).ids
    return [
        (ids[start : start + size], len(ids[start : start + size]) - 1) for start in range(0, len(ids), size)
    ]


def ids_of(text: str) -> list[int]:
    return zoo.byte_level().encode(text, add_special_tokens=False).ids


@asynccontextmanager
async def gateway_over(config: OutriderConfig, grace_s: float = 5.0):
    """Run a gateway in this loop; gives its addresses, its task and its stop event."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(config, ready=ready.set_result, stop=stop, grace_s=grace_s))
    try:
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield ready.result(), serving, stop
    finally:
        stop.set()
        await asyncio.wait((serving,))


def config_for(model_folder, *verifiers: str, **gateway) -> OutriderConfig:
    # Verifier, gateway and clients share one loop: that it is busy must not look like a verifier's death.
    patient = {"verifier_timeout_s": 30}
    settings = {"http_port": 0, "grpc_port": 0, "verifiers": verifiers, **patient, **gateway}
    return OutriderConfig(model=str(model_folder), gateway=settings)


@pytest.fixture(scope="session")
def make_verifier(model_folder):
    """A scripted verifier of the folder's model."""

    def make(text: str = "the quick brown fox", size: int = 3, **info) -> ScriptedVerifier:
        fingerprint = tokenizer_fingerprint(model_folder)
        settings = {"vocab_size": zoo.byte_level().get_vocab_size(), **info}
        return ScriptedVerifier(info_for(fingerprint, **settings), lambda _: say(text, size))

    return make


@pytest.fixture
async def stack(model_folder, make_verifier):
    """Gateway and verifier; change `stack.verifier.script` for other tokens."""
    verifier = make_verifier()
    async with running(verifier) as address, gateway_over(config_for(model_folder, address)) as up:
        addresses, serving, stop = up
        yield Stack(addresses["http"], addresses["grpc"], verifier, stop, serving)


@pytest.fixture
async def client(stack):
    async with httpx.AsyncClient(base_url=stack.http, timeout=30) as client:
        yield client


@pytest.fixture
async def generation(stack):
    """gRPC client of the gateway."""
    channel = channels.open_channel(stack.grpc)
    yield services.generation_client(channel)
    await channel.close()


class Hold:
    """Holds a session's rounds back from the second on, until released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, session, index) -> None:
        if index:
            await self.release.wait()

    async def nothing(self, session, index) -> None:
        """No pace at all."""


@pytest.fixture
def hold(stack):
    """The verifier sends one round, then waits."""
    hold = Hold()
    stack.verifier.pace = hold
    return hold
