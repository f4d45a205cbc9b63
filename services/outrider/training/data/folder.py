"""A folder of shards that is being written: what it was begun with, what is there, what may be quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from outrider.core.errors import ConfigError
from outrider.training.data.chat import ChatFormat
from outrider.training.data.shards import Sample, Shard, shard_path, write_shard

_ABOUT = "data.json"
LEAST_QUOTED = 60
"""Shorter answers are not quoted in later prompts."""


class DataFolder:
    """Shards 0, 1, 2, ... and the texts in them."""

    def __init__(self, folder: Path, about: Mapping[str, object], chat: ChatFormat) -> None:
        """Open or make a folder.

        Args:
            folder: where the shards lie.
            about: all that decides what is written; JSON values.
            chat: decodes answers.

        Raises:
            ConfigError: it was begun with something else, or cannot be read.
        """
        self._folder = folder
        self._chat = chat
        self._texts: list[list[str]] = []  # of each shard
        self.response_tokens = 0
        folder.mkdir(parents=True, exist_ok=True)
        _agree(folder / _ABOUT, about)
        while (path := shard_path(folder, len(self))).exists():
            self._add(Shard(path))

    def __len__(self) -> int:
        return len(self._texts)

    def texts_before(self, number: int) -> list[str]:
        """Answers in the shards before shard `number`."""
        return [text for texts in self._texts[: max(number, 0)] for text in texts]

    def write(self, samples: list[Sample]) -> None:
        """Add the next shard."""
        path = shard_path(self._folder, len(self))
        write_shard(path, samples)
        self._add(Shard(path))

    def _add(self, shard: Shard) -> None:
        answers = [shard.answer(index) for index in range(len(shard))]
        self._texts.append([self._chat.decode(ids) for ids in answers if len(ids) > LEAST_QUOTED])
        self.response_tokens += shard.response_tokens


def _agree(path: Path, about: Mapping[str, object]) -> None:
    text = json.dumps(about, indent=2, sort_keys=True)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        return
    begun = path.read_text(encoding="utf-8")
    if begun != text:
        raise ConfigError(f"{path.parent} was begun with other settings: {begun} against {text}")
