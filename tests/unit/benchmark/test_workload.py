"""Prompts are read once each, and the plan treats all drafters alike."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.benchmark.workload import Block, Prompt, arrival_offsets, block_size, plan, read_prompts
from outrider.core.errors import ConfigError


def write(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    return path


def entry(number: int, category: str, text: str = "") -> dict[str, object]:
    return {"id": number, "category": category, "turns": [text or f"prompt {number}", "a second turn"]}


def prompts(count: int) -> list[Prompt]:
    return [Prompt(str(number), "any", f"prompt {number}") for number in range(count)]


def test_the_first_turn_is_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", entry(7, "qa", "Why?"))
    assert read_prompts(path) == [Prompt("7", "qa", "Why?")]


def test_a_repeated_text_is_sent_once(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", entry(1, "qa", "same"), entry(2, "rag", "same"), entry(3, "qa"))
    assert [prompt.prompt_id for prompt in read_prompts(path)] == ["1", "3"]


def test_a_limit_takes_from_each_category_in_turn(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", *(entry(number, "ab"[number // 4]) for number in range(8)))
    assert [prompt.prompt_id for prompt in read_prompts(path, 5)] == ["0", "4", "1", "5", "2"]


@pytest.mark.parametrize("line", ['{"id": 1}', "[]", "nonsense", '{"id":1,"category":"x","turns":[]}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(entry(1, "qa")) + "\n" + line)
    with pytest.raises(ConfigError, match=r"p\.jsonl, line 2"):
        read_prompts(path)


def test_no_file_and_no_prompts_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read prompts"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompts(write(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize(("count", "concurrency"), [(7, 1), (20, 8), (3, 8)])
def test_every_drafter_answers_every_prompt_once(count: int, concurrency: int) -> None:
    blocks = list(plan(prompts(count), ["off", "a", "b"], block_size(concurrency)))
    served = Counter((block.drafter, prompt.prompt_id) for block in blocks for prompt in block.prompts)
    assert len(served) == 3 * count
    assert set(served.values()) == {1}


def test_drafters_alternate_and_take_turns_at_going_first() -> None:
    blocks = list(plan(prompts(6), ["off", "a", "b"], 1))
    groups: dict[int, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.index, []).append(block)
    assert [[block.drafter for block in group] for group in groups.values()] == [
        ["off", "a", "b"],
        ["a", "b", "off"],
        ["b", "off", "a"],
    ] * 2
    assert all(len({block.prompts for block in group}) == 1 for group in groups.values())


def test_blocks_keep_the_slots_full() -> None:
    assert [block_size(1), block_size(8), block_size(1, open_loop=True)] == [1, 16, 16]


def test_arrivals_start_at_zero_grow_and_repeat() -> None:
    offsets = arrival_offsets(1000, rate=4.0, seed=3)
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets == arrival_offsets(1000, rate=4.0, seed=3)
    assert offsets[-1] == pytest.approx(250, rel=0.15)  # the law of large numbers, for this seed
