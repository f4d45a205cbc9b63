"""What each conversation is about: a message that the target makes up, or a task about its own texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import ConfigError
from outrider.training.data.chat import ChatFormat
from outrider.training.data.phrases import LANGUAGES, QUESTIONS, STEMS, TASKS, Task

MESSAGE_TOKENS = 820
"""Longest message about texts."""
ENOUGH_TEXTS = 40
"""With fewer texts of its own the target only makes up messages."""
TASK_SHARE = 0.5
STEM_SHARE = 0.5
FOLLOW_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversation before it is written."""

    category: str
    message: tuple[int, ...]  # the user's turn, or how it begins
    free: bool  # the target goes on with the user's turn
    follow_up: bool  # a second turn of the user's, made up too
    temperature: float  # of the answers
    seed: int  # of all that is drawn


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message of the user's own prompts."""

    category: str
    text: str


def plan(
    source: random.Random, chat: ChatFormat, texts: Sequence[str], temperatures: Sequence[tuple[float, float]]
) -> Plan:
    """Invent a conversation.

    Args:
        source: all randomness comes from here.
        chat: encodes texts.
        texts: what the target wrote before.
        temperatures: of answers, with the share of each.
    """
    drawn = _drawn(source, temperatures)
    seed = source.getrandbits(63)
    if len(texts) >= ENOUGH_TEXTS and source.random() < TASK_SHARE:
        task = source.choices(TASKS, [task.share for task in TASKS])[0]
        message = chat.encode(_fill(source, chat, task, texts))[:MESSAGE_TOKENS]
        return Plan(task.category, tuple(message), False, False, drawn, seed)
    begun = source.random() < STEM_SHARE
    stem = chat.encode(source.choice(STEMS)) if begun else []
    return Plan("chat", tuple(stem), True, source.random() < FOLLOW_UP_SHARE, drawn, seed)


def plan_prompt(
    source: random.Random, chat: ChatFormat, prompt: Prompt, temperatures: Sequence[tuple[float, float]]
) -> Plan:
    """A conversation that answers a given prompt."""
    drawn = _drawn(source, temperatures)
    return Plan(prompt.category, tuple(chat.encode(prompt.text)), False, False, drawn, source.getrandbits(63))


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file: objects with `turns` (the first one is asked) and perhaps `category`.

    Raises:
        ConfigError: the file, or a line of it, cannot be read, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read prompts from {path}: {error.strerror}") from error
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompts.append(Prompt(str(entry.get("category", "prompts")), str(entry["turns"][0])))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path.name}, line {number}: expected an object with turns: {error!r}"
            ) from error
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts


def _drawn(source: random.Random, temperatures: Sequence[tuple[float, float]]) -> float:
    return source.choices([value for value, _ in temperatures], [share for _, share in temperatures])[0]


def _fill(source: random.Random, chat: ChatFormat, task: Task, texts: Sequence[str]) -> str:
    template = source.choice(task.templates)
    values = {"language": source.choice(LANGUAGES), "sentence": _sentence(source, texts)}
    if "{fragment}" in template:
        values["fragment"] = _sentence(source, texts)[:80].lower()
    if "{texts}" in template:
        count = source.randint(*task.texts)
        parts = [_passage(source, chat, texts, *task.tokens) for _ in range(count)]
        numbered = [f"[{number}] {part}" for number, part in enumerate(parts, start=1)]
        values["texts"] = "\n\n".join(numbered if count > 1 else parts)
    if "{question}" in template:
        values["question"] = source.choice(QUESTIONS).format(sentence=_sentence(source, texts))
    return template.format(**values)


def _passage(source: random.Random, chat: ChatFormat, texts: Sequence[str], least: int, most: int) -> str:
    """Texts in a row until there are at least so many tokens; the last is cut."""
    parts: list[str] = []
    length = 0
    for _ in range(12):
        token_ids = chat.encode(source.choice(texts))[: most - length]
        parts.append(chat.decode(token_ids))
        length += len(token_ids)
        if length >= least:
            break
    return "\n\n".join(parts)


def _sentence(source: random.Random, texts: Sequence[str]) -> str:
    """One or two sentences of a text, or how it begins if there are none of a usable length."""
    for _ in range(10):
        every = [part.strip() for part in source.choice(texts).replace("\n", " ").split(". ")]
        usable = [part for part in every if 20 < len(part) < 260]
        if usable:
            return " ".join(source.sample(usable, min(len(usable), source.choice((1, 1, 2))))) + "."
    return source.choice(texts)[:200]
