"""What a benchmark sends, and in which order.

Prompts come from a JSONL file, one object a line: `id`, `category`, `turns` (the user's turns; the
first one is sent). The plan interleaves the drafters over small blocks of prompts, so that a
machine that warms up, throttles or gets busy touches all of them alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import ConfigError

OFF = "off"
"""Name that stands for "no speculation" among the drafters."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the workload."""

    prompt_id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts that one drafter answers before the next drafter has its turn."""

    index: int  # counts groups of prompts: the same for all drafters of a group
    drafter: str
    prompts: tuple[Prompt, ...]


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Read a workload; with `limit`, that many prompts, taken from each category in turn.

    A prompt that repeats an earlier one is left out: a cache would answer it, not the model.

    Raises:
        ConfigError: the file or a line of it cannot be read, or nothing is left.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read prompts from {path}: {error.strerror}") from error
    unique: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompt = _parse(line, f"{path.name}, line {number}")
            unique.setdefault(prompt.text, prompt)
    prompts = list(unique.values())
    if limit is not None:
        prompts = _in_turn(prompts)[:limit]
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts


def _parse(line: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
        turns = entry["turns"]
        prompt = Prompt(str(entry["id"]), str(entry["category"]), turns[0])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{where}: expected an object with id, category and turns: {error!r}") from error
    if not isinstance(prompt.text, str) or not prompt.text:
        raise ConfigError(f"{where}: the first turn must be a text that is not empty")
    return prompt


def _in_turn(prompts: Sequence[Prompt]) -> list[Prompt]:
    """One prompt of each category, then the next one of each, and so on."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    longest = max((len(group) for group in by_category.values()), default=0)
    return [group[row] for row in range(longest) for group in by_category.values() if row < len(group)]


def block_size(concurrency: int, *, open_loop: bool = False) -> int:
    """Prompts in a block: one by one alone; else twice the concurrency, so that slots are refilled.

    A block ends with a tail in which fewer than `concurrency` requests run. It is the same share
    for every drafter, but it makes absolute rates lower than an endless stream would. An open
    loop needs enough requests in a block for arrivals to pile up.
    """
    if open_loop:
        return max(16, 2 * concurrency)
    return 1 if concurrency == 1 else 2 * concurrency


def plan(prompts: Sequence[Prompt], drafters: Sequence[str], size: int) -> Iterator[Block]:
    """Blocks of `size` prompts in the order in which they run: every drafter has every prompt once.

    The order of the drafters turns by one from group to group, so that none is always first.
    """
    for index, start in enumerate(range(0, len(prompts), size)):
        group = tuple(prompts[start : start + size])
        shift = index % len(drafters)
        for drafter in (*drafters[shift:], *drafters[:shift]):
            yield Block(index, drafter, group)


def arrival_offsets(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start of a block at which an open loop sends: a Poisson process.

    The first request goes at 0. The same seed gives every drafter the same arrivals.
    """
    source = random.Random(seed)
    offsets = [0.0]
    for _ in range(count - 1):
        offsets.append(offsets[-1] + source.expovariate(rate))
    return offsets[:count]
