"""Which tokenizers count as the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import ConfigError
from outrider.core.fingerprint import tokenizer_fingerprint

Content = dict[str, Any]

BPE: Content = {
    "version": "1.0",
    "truncation": None,
    "added_tokens": [
        {"id": 3, "content": "<|end|>", "special": True},
        {"id": 4, "content": "<|user|>", "special": True},
    ],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}
UNIGRAM: Content = {
    "added_tokens": [],
    "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]},
}


def fingerprint(folder: Path, content: object, *, indent: int | None = None) -> str:
    folder.mkdir(exist_ok=True)
    text = json.dumps(content, indent=indent, ensure_ascii=indent is None)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return tokenizer_fingerprint(folder)


def changed(content: Content, change: Callable[[Content], object]) -> Content:
    other = copy.deepcopy(content)
    change(other)
    return other


def test_is_a_sha256_and_stable(tmp_path: Path) -> None:
    value = fingerprint(tmp_path, BPE)
    assert len(bytes.fromhex(value)) == 32
    # Stored by drafters and verifiers of other releases: a change here parts them.
    assert value == "7a20e2bfea6c34179cc280def63b470d55261e96bdb24efe3efe932431bd2434"


SAME: list[Callable[[Content], object]] = [
    lambda c: c.update(truncation={"max_length": 512}),
    lambda c: c.update(post_processor={"type": "TemplateProcessing"}),
    lambda c: c["model"].update(vocab={"ab": 2, "b": 1, "a": 0}),
    lambda c: c["model"].update(merges=[["a", "b"]]),
    lambda c: c["added_tokens"].reverse(),
    lambda c: c["added_tokens"][0].update(special=False),
    lambda c: c["model"].update(dropout=None),
]


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_change_ids_does_not_count(tmp_path: Path, change: Callable[[Content], object]) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    assert fingerprint(ours, BPE) == fingerprint(theirs, changed(BPE, change), indent=2)


OTHER: list[Callable[[Content], object]] = [
    lambda c: c["model"]["vocab"].update(c=5),
    lambda c: c["model"].update(vocab={"a": 1, "b": 0, "ab": 2}),
    lambda c: c["model"].update(merges=[]),
    lambda c: c["model"].update(type="WordPiece"),
    lambda c: c["added_tokens"].pop(),
    lambda c: c["added_tokens"][0].update(id=9),
    lambda c: c["added_tokens"][0].update(content="<|stop|>"),
]


@pytest.mark.parametrize("change", OTHER)
def test_what_changes_ids_counts(tmp_path: Path, change: Callable[[Content], object]) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    assert fingerprint(ours, BPE) != fingerprint(theirs, changed(BPE, change))


def test_unigram_counts_ids_and_not_scores(tmp_path: Path) -> None:
    base = fingerprint(tmp_path, UNIGRAM)
    assert base == fingerprint(
        tmp_path, changed(UNIGRAM, lambda c: c["model"]["vocab"][1].__setitem__(1, -9.0))
    )
    assert base != fingerprint(tmp_path, changed(UNIGRAM, lambda c: c["model"]["vocab"].reverse()))


def test_tokens_cannot_be_confused_by_concatenation(tmp_path: Path) -> None:
    one = changed(BPE, lambda c: c["model"].update(merges=[["a", "b c"]]))
    other = changed(BPE, lambda c: c["model"].update(merges=[["a b", "c"]]))
    assert fingerprint(tmp_path, one) != fingerprint(tmp_path, other)


@pytest.mark.parametrize(
    "content",
    [{}, [], 5, {"model": {}}, {"model": {"vocab": 3}}, {"model": {"vocab": {"a": "x"}}}, {"model": None}],
)
def test_what_is_not_a_tokenizer_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer"):
        fingerprint(tmp_path, content)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        tokenizer_fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        tokenizer_fingerprint(tmp_path)
