"""A drafter that follows a script, behind a real gRPC server. It records every command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from outrider.config.schema import DrafterConfig
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.wire import channels, convert, services
from outrider.wire.messages import AdvanceDraft, DraftCommand, DraftEvent, OpenDraft
from outrider.wire.v1 import drafter_pb2 as pb


class CloseStreamError(Exception):
    """Raised by a script to end the stream."""


class Held:
    """A session as the drafter holds it."""

    def __init__(self, command: OpenDraft) -> None:
        self.session_id = command.session_id
        self.epoch = command.epoch
        self.prompt = command.token_ids
        self.tokens = list(command.token_ids)
        self.wanted = command.draft_length

    def propose(self, token_ids: Iterable[int], **changes: Any) -> Proposal:
        """A chain from the present length on."""
        values = {"tree": TokenTree.chain(list(token_ids)), **changes}
        return Proposal(
            values.get("session_id", self.session_id),
            values.get("epoch", self.epoch),
            values.get("base_len", len(self.tokens)),
            values["tree"],
        )


Script = Callable[[Held], Iterable[DraftEvent | pb.DraftEvent]]
"""What to answer to an Open or Advance that asks for drafts."""


class ScriptedDrafter(services.DrafterService):
    """Holds sessions as a drafter does and answers by the script."""

    def __init__(self, script: Script, *, info: DrafterInfo | None = None) -> None:
        self.script = script
        self.info = info or DrafterInfo(ModelInfo("scripted"), "scripted", (), 64, 64, "one")
        self.commands: list[DraftCommand] = []
        self.held: dict[str, Held] = {}
        self.streams = 0
        self.greetings = 0
        self.reading = asyncio.Event()
        self.reading.set()

    async def GetInfo(self, request: pb.DrafterGetInfoRequest, context: Any) -> pb.DrafterGetInfoResponse:
        self.greetings += 1
        await self.reading.wait()
        return convert.drafter_info_to_proto(self.info)

    async def Draft(
        self, request_iterator: AsyncIterable[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        self.streams += 1
        self.held.clear()
        try:
            async for request in request_iterator:
                await self.reading.wait()
                for message in request.commands:
                    for event in self._apply(convert.command_from_proto(message)):
                        proto = event if isinstance(event, pb.DraftEvent) else convert.event_to_proto(event)
                        yield pb.DraftResponse(events=[proto])
        except CloseStreamError:
            return

    def _apply(self, command: DraftCommand) -> Iterable[DraftEvent | pb.DraftEvent]:
        self.commands.append(command)
        if isinstance(command, OpenDraft):
            self.held[command.session_id] = held = Held(command)
        elif isinstance(command, AdvanceDraft):
            found = self.held.get(command.session_id)
            if found is None:
                return ()
            held = found
            assert command.base_len == len(held.tokens)
            held.tokens.extend(command.token_ids)
            held.wanted = command.draft_length
        else:
            self.held.pop(command.session_id, None)
            return ()
        return self.script(held) if held.wanted else ()


@asynccontextmanager
async def scripted(drafter: ScriptedDrafter, port: int = 0) -> AsyncIterator[DrafterConfig]:
    """Serve the drafter; yields how a verifier finds it."""
    server = channels.make_server()
    services.add_drafter(server, drafter)
    address = channels.listen(server, "127.0.0.1", port)
    await server.start()
    try:
        yield DrafterConfig(method="prompt_lookup", port=int(address.rpartition(":")[2]))
    finally:
        await server.stop(0)


def knowing(
    answers: dict[tuple[int, ...], list[int]], spoil: Callable[[int, list[int]], list[int]]
) -> Script:
    """A drafter that knows what each prompt leads to; `spoil(length, right)` may change what it says."""

    def script(held: Held) -> list[DraftEvent]:
        done = len(held.tokens) - len(held.prompt)
        prompt = held.prompt
        right = answers.get(prompt)
        if right is None:  # opened in mid-run: find the prompt that this is a continuation of
            prompt, right = next(
                (p, a) for p, a in answers.items() if [*p, *a][: len(held.prompt)] == list(held.prompt)
            )
            done = len(held.tokens) - len(prompt)
        return [held.propose(spoil(done, right[done : done + held.wanted]))]

    return script
