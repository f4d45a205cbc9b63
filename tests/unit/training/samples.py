"""Texts to learn from: what a tiny target wrote."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from outrider.config.schema import EngineConfig
from outrider.engine.engine import Engine
from outrider.training.data.chat import ChatFormat
from outrider.training.data.folder import DataFolder
from outrider.training.data.generator import DataSettings, Generator
from outrider.training.data.inventing import Prompt
from outrider.training.target import Teacher
from tests.tiny_models import make_tiny

FEATURES = ("hidden_2", "hidden_4", "hidden_5", "hidden_8", "last_hidden")
SETTINGS = DataSettings(
    seed=3,
    features=FEATURES,
    shard_size=6,
    answer_tokens=24,
    context=160,
    temperatures=((0.0, 0.5), (1.0, 0.5)),
)


@cache
def tiny_target() -> Path:
    """A llama of eight layers."""
    return make_tiny("llama", Path(mkdtemp()) / "target", layers=8)


@cache
def tiny_engine() -> Engine:
    """That llama in float32."""
    config = EngineConfig(dtype="float32", threads=1, pool_tokens=4096, prefix_cache=False)
    return Engine.load(tiny_target(), config)


def generator(
    folder: Path, *, settings: DataSettings = SETTINGS, batch: int = 4, prompts: tuple[Prompt, ...] = ()
) -> Generator:
    """Writes into `folder`."""
    engine = tiny_engine()
    chat = ChatFormat.load(tiny_target(), engine.eos_token_ids)
    shards = DataFolder(folder, settings.about(engine.info.identity), chat)
    return Generator(engine, chat, shards, settings, batch=batch, prompts=prompts)


@cache
def tiny_data() -> Path:
    """A folder of shards, to read only."""
    folder = Path(mkdtemp()) / "data"
    generator(folder).run(400, lambda tokens: None)
    return folder


def teacher(columns: int = 96) -> Teacher:
    """The llama's, over a part of its vocabulary, for float32 students."""
    ids = torch.arange(0, 512, 512 // columns)[:columns]
    return Teacher.load(tiny_target(), "target", ids, dtype=torch.float32)
