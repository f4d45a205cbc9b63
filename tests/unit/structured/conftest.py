"""A compiler over the tiny models' tokenizer, with a vocabulary that is padded past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from outrider.core.params import Grammar, GrammarKind
from outrider.structured import GrammarCompiler, GrammarMatcher, GrammarVocabulary
from tests.tiny_models import EOS_TOKEN_ID, make_tiny

VOCAB = 600
TOKENIZER = 512

Make = Callable[..., GrammarMatcher]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 600 columns over a tokenizer with fewer tokens."""
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def compiler(folder: Path) -> Iterator[GrammarCompiler]:
    """A compiler for it."""
    running = GrammarCompiler(
        lambda: GrammarVocabulary.load(folder, vocab_size=VOCAB, eos_token_ids={EOS_TOKEN_ID})
    )
    yield running
    running.close()


@pytest.fixture(scope="session")
def make(compiler: GrammarCompiler) -> Make:
    """A matcher of a grammar."""

    def matcher(kind: GrammarKind, text: str = "", stop: tuple[int, ...] = ()) -> GrammarMatcher:
        return compiler.submit(Grammar(kind, text)).result(timeout=60).matcher(stop)

    return matcher
