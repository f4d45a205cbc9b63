"""A drafter that costs what a real one costs and is right as often as it is told to be.

    python bench/oracle_drafter.py CONFIG.yaml NAME ANSWERS.json

It serves drafter NAME of the configuration: its method really works, but what it proposes is replaced by the
target's own next tokens, each right with the probability that the session's seed says in thousandths
(sessions are greedy, so the seed has no other use). ANSWERS holds them, by prompt; it is read again whenever
a prompt is not known.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from outrider.cli.service import run_service
from outrider.config import load_config
from outrider.config.schema import DrafterConfig
from outrider.core.trees import TokenTree
from outrider.drafting import server
from outrider.drafting.factory import build_method
from outrider.drafting.method import DraftingMethod
from outrider.drafting.session import DraftSession

NEVER = 3  # an id that a wrong draft token has, unless it is right


class OracleMethod:
    """A drafting method with other proposals; all else is the method's own."""

    def __init__(self, inner: DraftingMethod, answers: Path) -> None:
        self._inner = inner
        self._path = answers
        self._answers: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        """As deep as asked for, whatever the method found: an oracle always has something to say."""
        self._inner.proposal(session, length, nodes)
        done = len(session.tokens) - session.prompt_len
        right = self._answer(session)[done : done + length]
        source = random.Random(f"{session.tokens[:8]} {len(session.tokens)}")
        rate = session.sampling.seed / 1000
        drafted = [token if source.random() < rate else _wrong(token) for token in right]
        return TokenTree.chain(drafted)

    def _answer(self, session: DraftSession) -> list[int]:
        key = key_of(session.tokens[: session.prompt_len])
        if key not in self._answers:
            self._answers = json.loads(self._path.read_text())
        return self._answers.get(key, [])


def key_of(prompt: list[int] | tuple[int, ...]) -> str:
    """A prompt's name in the file of answers."""
    return ",".join(map(str, prompt))


def _wrong(token: int) -> int:
    return NEVER if token != NEVER else NEVER + 1


def main() -> None:
    """Serve until told to stop."""
    config = load_config(Path(sys.argv[1]), ())
    name, answers = sys.argv[2], Path(sys.argv[3])

    def build(own: DrafterConfig, target: str) -> DraftingMethod:
        return OracleMethod(build_method(own, target), answers)  # type: ignore[return-value]

    server.build_method = build

    async def serve(ready: Any, stop: asyncio.Event) -> None:
        await server.serve(config, name, ready=ready, stop=stop)

    run_service(f"drafter:{name}", serve)


if __name__ == "__main__":
    main()
