"""Drafters that a test plays itself: wrong in every way, and right where that is more dangerous.

They know what the requests are answered with speculation off, so that their proposals lead the
verifier deep into accepted runs before they go wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outrider.wire.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc
from tests.faults.hostile import GREATEST, VOCABULARY, Hostile, proposal, serving

END_OF_SEQUENCE = 2


@dataclass
class Oracle:
    """What requests lead to, by seed and prompt, as far as they are known."""

    answers: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)

    def after(self, seed: int, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens, or fewer."""
        for (known, prompt), answer in self.answers.items():
            done = len(tokens) - len(prompt)
            if known == seed and done >= 0 and tokens == [*prompt, *answer[:done]]:
                return answer[done : done + count]
        return []


@dataclass
class Held:
    """A session as its drafter holds it."""

    seed: int
    tokens: list[int]
    wanted: int = 0


Trick = Callable[["Adversary", Any, Held, list[int]], list[Any]]
"""Makes events out of the command, the session and what the right answer would be."""


class Adversary(drafter_pb2_grpc.DrafterServicer):
    """Plays one trick for every command that asks for drafts."""

    def __init__(self, name: str, trick: Trick, oracle: Oracle, *, delay_s: float = 0.0) -> None:
        self.name, self.trick, self.oracle, self.delay_s = name, trick, oracle, delay_s
        self.random = random.Random(name)
        self.held: dict[str, Held] = {}
        self.played: Counter[str] = Counter()

    async def GetInfo(self, request: Any, context: Any) -> drafter_pb2.DrafterGetInfoResponse:
        """Looks like an honest prompt lookup."""
        return drafter_pb2.DrafterGetInfoResponse(
            protocol_version=1,
            model=common_pb2.ModelInfo(model_name=self.name),
            method="prompt_lookup",
            max_draft_tokens=32,
            max_sessions=64,
            instance_id=self.name,
        )

    async def Draft(self, request_iterator: Any, context: Any) -> AsyncIterator[drafter_pb2.DraftResponse]:
        """Follows the sessions as an honest drafter does, and answers by its trick."""
        async for request in request_iterator:
            for command in request.commands:
                held = self._follow(command)
                if held is None or not held.wanted:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.random.uniform(0, self.delay_s))
                self.played[self.name] += 1
                right = self.oracle.after(held.seed, held.tokens, held.wanted)
                yield drafter_pb2.DraftResponse(events=self.trick(self, command, held, right))

    def _follow(self, command: Any) -> Held | None:
        kind = command.WhichOneof("command")
        if kind == "close":
            self.held.pop(command.session_id, None)
            return None
        if kind == "open":
            held = Held(command.open.sampling.seed, list(command.open.token_ids), command.open.draft_length)
            self.held[command.session_id] = held
            return held
        held = self.held[command.session_id]
        held.tokens += command.advance.token_ids
        held.wanted = command.advance.draft_length
        return held

    def token(self) -> int:
        """Any token."""
        return self.random.randrange(VOCABULARY)


def _chain(command: Any, held: Held, ids: list[int], **change: Any) -> Any:
    return proposal(command, change.pop("base_len", len(held.tokens)), ids, **change)


def random_tokens(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Anything."""
    return [_chain(command, held, [own.token() for _ in range(held.wanted)])]


def illegal_ids(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Right for a while, then an id that no vocabulary has."""
    illegal = own.random.choice((VOCABULARY, VOCABULARY + 1, 2**31 - 1, GREATEST))
    return [_chain(command, held, [*right[: held.wanted - 1], illegal])]


def always_wrong(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Never what the target picks."""
    wrong = [(token + 1) % VOCABULARY for token in right]
    return [_chain(command, held, wrong or [own.token()])]


def almost_right(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Right up to somewhere, then one wrong token, then right again."""
    ids = list(right)
    if ids:
        ids[own.random.randrange(len(ids))] = own.token()
    return [_chain(command, held, ids)]


def deep_tree(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """The right path, or most of it, hidden among wrong siblings, each with children of its own."""
    ids: list[int] = []
    parents: list[int] = []
    parent = -1
    for token in right:
        if len(ids) + 3 > held.wanted:
            break
        others = {own.token(), own.token()} - {token}
        level = [*list(others)[: own.random.randrange(3)], token]
        own.random.shuffle(level)
        ids += level
        parents += [parent] * len(level)
        parent = len(ids) - len(level) + level.index(token)
    for _ in range(held.wanted - len(ids)):
        ids.append(own.token())
        parents.append(own.random.randrange(-1, len(parents)))
    seen: set[tuple[int, int]] = set()
    if any((pair in seen) or seen.add(pair) for pair in zip(ids, parents, strict=True)):  # type: ignore[func-returns-value]
        return [_chain(command, held, right)]
    return [_chain(command, held, ids, parents=parents)]


def oversized(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """More than was asked for, or far more than anybody would take."""
    more = own.random.choice((1, 7, 5000))
    return [_chain(command, held, [*right, *(own.token() for _ in range(more + held.wanted - len(right)))])]


def duplicates(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """The same proposal again, another one for the same length, and twins among siblings."""
    once = _chain(command, held, right or [own.token()])
    other = _chain(command, held, [own.token()])
    twins = _chain(command, held, [5, 5], parents=[-1, -1])
    return own.random.choice(([once, once], [once, other], [other, once], [twins, once]))


def stale(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Right, but for another length or another owner."""
    shift = own.random.choice((-1, 1, -len(held.tokens), 1000))
    late = _chain(command, held, right, base_len=len(held.tokens) + shift)
    old = _chain(command, held, right)
    old.epoch += own.random.choice((-1, 1))
    return [late, old] if own.random.random() < 0.5 else [old, _chain(command, held, right)]


def past_the_end(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Right to the end of the answer, then the end of sequence, then on."""
    ids = [*right, END_OF_SEQUENCE, *(own.token() for _ in range(held.wanted))]
    return [_chain(command, held, ids[: held.wanted])]


def right(own: Adversary, command: Any, held: Held, right: list[int]) -> list[Any]:
    """Always right, as far as it is known."""
    return [_chain(command, held, right)]


TRICKS: Mapping[str, Trick] = {
    "random": random_tokens,
    "illegal": illegal_ids,
    "wrong": always_wrong,
    "almost": almost_right,
    "tree": deep_tree,
    "oversized": oversized,
    "duplicates": duplicates,
    "stale": stale,
    "past-the-end": past_the_end,
    "slow": right,
}
HOSTILE = "hostile"
NAMES = (*TRICKS, HOSTILE)


@asynccontextmanager
async def playing(oracle: Oracle, addresses: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Serve all of them where the stack expects drafters of these names."""
    async with AsyncExitStack() as stack:
        played: dict[str, Any] = {}
        for name, address in addresses.items():
            adversary: Any = (
                Hostile(seed=11)
                if name == HOSTILE
                else Adversary(name, TRICKS[name], oracle, delay_s=0.03 if name == "slow" else 0.0)
            )
            played[name] = await stack.enter_async_context(serving(adversary, address))
        yield played
