"""Text on the terminal as it comes, the accepted draft tokens in colour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta

DRAFTED = "bold green"
LEGEND = Text.assemble(("green", DRAFTED), ": draft tokens that the target accepted; plain: the target's own")


class Painter:
    """Prints the deltas of one generation.

    A delta's text does not say which of its characters belong to which token, so the ids are
    turned to text here once more, and the gateway's text is laid over that.
    """

    def __init__(self, console: Console, tokenizer: TextTokenizer | None) -> None:
        self._console = console
        self._detokenizer = None if tokenizer is None else tokenizer.detokenizer()
        self._pieces: deque[tuple[int, bool]] = deque()  # characters, drafted

    def __call__(self, delta: GenerationDelta) -> None:
        """Print one delta."""
        for text, drafted in self.split(delta):
            self._console.print(Text(_harmless(text), DRAFTED if drafted else ""), end="", soft_wrap=True)

    def split(self, delta: GenerationDelta) -> Iterator[tuple[str, bool]]:
        """The delta's text in pieces, each with whether draft tokens gave it."""
        for index, token_id in enumerate(delta.token_ids):
            self._take(token_id, index < delta.accepted)
        text = delta.text
        while text:
            count, drafted = self._pieces.popleft() if self._pieces else (len(text), False)
            if count > len(text):
                self._pieces.appendleft((count - len(text), drafted))
            yield text[:count], drafted
            text = text[count:]

    def _take(self, token_id: int, drafted: bool) -> None:
        if self._detokenizer is not None:
            for piece in self._detokenizer.push(token_id):
                self._pieces.append((len(piece.text), drafted))


def tokenizer_for(folder: Path) -> TextTokenizer:
    """The tokenizer to paint a model's tokens with."""
    return TextTokenizer.load(folder)


def _harmless(text: str) -> str:
    """A model's output must not steer the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
