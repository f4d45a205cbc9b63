"""What conversations begin with: the user's own prompts, or ones that the target invents.

Half of the invented ones are free: the target writes the user's message, from its first word or from a stem.
The other half are about texts that the target wrote before, since drafters are weakest where the
answer follows a long context: summaries, translations, passages to answer from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.core.errors import ConfigError

STEMS = (
    "Write", "Explain", "What is", "How do", "Why", "Give me", "Can you", "Summarize", "Translate", "Solve",
    "Write a Python function", "Write a program", "Describe", "List", "Compare", "Who", "When", "Imagine you are",
    "Act as", "Write an email", "Write a short story", "Write a poem", "Calculate", "If a", "A train",
    "What are the", "Create", "Design", "Suggest", "Rewrite", "Extract", "Identify", "Classify", "In the",
    "Given the following", "Read the passage", "Discuss", "Tell me", "Help me", "I have", "Which", "Is it",
    "Prove", "Find the", "Implement", "Draft", "Compose", "Evaluate", "Analyze", "Define", "Question:", "def ",
)  # fmt: skip
_LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")
_SUMMARY = (
    "Summarize: {}",
    "Summarize the following article:\n\n{}",
    "{}\n\nTL;DR",
    "Write a short summary of this text.\n\n{}",
    "{}\n\nSummarize the text above in three sentences.",
    "What are the main points of the following text?\n{}",
)
_TRANSLATION = (
    "Translate {} to {}: {}",
    "Translate the following sentence from {} into {}:\n{}",
    "From {} into {}, please: {}",
)
_QUESTION = (
    "What do the passages say about this: {}",
    "Based on the passages, explain: {}",
    'Question: what is known about "{}"?',
    "Is it true that {}",
)
_EDIT = (
    "Rewrite this text in simpler words:\n{}",
    "Correct the grammar of the following text:\n{}",
    "Extract the key facts from the following text as a list:\n{}",
    "Turn the following text into JSON:\n{}",
    "Continue this text:\n{}",
    "Ask three questions about this text and answer them:\n{}",
    "Paraphrase:\n{}",
)


@dataclass(frozen=True, slots=True)
class Opening:
    """The user's first message."""

    text: str
    complete: bool  # False: the target goes on with it
    category: str


class Prompts(Protocol):
    """Where openings come from."""

    def opening(self, rng: random.Random, written: Sequence[str]) -> Opening:
        """One opening. A function of what `rng` gives and of the texts `written` before."""


class FilePrompts:
    """The user's own, in order and again from the beginning."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: not JSONL of objects with `prompt` or `turns`."""
        self._openings: list[Opening] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._openings.append(_opening(path, number, line))
        if not self._openings:
            raise ConfigError(f"{path} holds no prompts")

    def opening(self, rng: random.Random, written: Sequence[str]) -> Opening:
        """One of them, at random."""
        return rng.choice(self._openings)


class InventedPrompts:
    """Free ones, and ones about texts that the target wrote before."""

    FEW = 40
    """With fewer texts than this, all openings are free."""

    def opening(self, rng: random.Random, written: Sequence[str]) -> Opening:
        """One opening."""
        if len(written) >= self.FEW and rng.random() < 0.5:
            kinds: tuple[Callable[[random.Random, Sequence[str]], Opening], ...] = (
                _summary, _translation, _passages, _edit, _question,
            )  # fmt: skip
            (kind,) = rng.choices(kinds, (30, 20, 25, 13, 12))
            return kind(rng, written)
        return Opening(rng.choice(STEMS) if rng.random() < 0.5 else "", complete=False, category="chat")


def _opening(path: Path, number: int, line: str) -> Opening:
    try:
        value = json.loads(line)
        text = value["prompt"] if "prompt" in value else value["turns"][0]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f'{path}:{number} must be an object with "prompt" or "turns"') from error
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{path}:{number}: the prompt must be a text, not empty")
    return Opening(text, complete=True, category=str(value.get("category", "prompts")))


def _text(rng: random.Random, written: Sequence[str], least: int, most: int) -> str:
    """Texts one after another, about `least` to `most` words."""
    words: list[str] = []
    while len(words) < least:
        words += [*rng.choice(written).split(" "), "\n\n"]
    return " ".join(words[:most]).strip()


def _sentence(rng: random.Random, written: Sequence[str]) -> str:
    text = rng.choice(written).replace("\n", " ")
    sentences = [part.strip() for part in text.split(". ") if 20 < len(part) < 260] or [text[:200]]
    return ". ".join(rng.sample(sentences, min(len(sentences), rng.choice((1, 1, 2)))))


def _summary(rng: random.Random, written: Sequence[str]) -> Opening:
    return Opening(rng.choice(_SUMMARY).format(_text(rng, written, 110, 420)), True, "summary")


def _translation(rng: random.Random, written: Sequence[str]) -> Opening:
    other = rng.choice(_LANGUAGES)
    pair = ("English", other) if rng.random() < 0.5 else (other, "English")
    return Opening(rng.choice(_TRANSLATION).format(*pair, _sentence(rng, written)), True, "translation")


def _passages(rng: random.Random, written: Sequence[str]) -> Opening:
    passages = [_text(rng, written, 40, 90) for _ in range(rng.randint(2, 5))]
    body = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(passages, 1))
    question = rng.choice(_QUESTION).format(_sentence(rng, written))
    if rng.random() < 0.5:
        text = f"Answer the question with the help of these passages.\n\n{body}\n\n{question}"
    else:
        text = f"{body}\n\n{question}\nAnswer:"
    return Opening(text, True, "passages")


def _edit(rng: random.Random, written: Sequence[str]) -> Opening:
    return Opening(rng.choice(_EDIT).format(_text(rng, written, 40, 180)), True, "edit")


def _question(rng: random.Random, written: Sequence[str]) -> Opening:
    start = rng.choice(("What is", "Who", "When did", "Why is", "How many", "Where"))
    return Opening(f"{start} {_sentence(rng, written)[:80].lower()}?", True, "question")
