"""A drafter follows its sessions' grammars, or leaves them alone: it never waits and never fails for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from outrider.core.params import Grammar, GrammarKind, LogitEdits, SamplingParams
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.session import DraftSession, SessionKey
from outrider.structured import GrammarCompiler, GrammarMatcher, GrammarVocabulary
from tests.tiny_models import EOS_TOKEN_ID, make_tiny

WORD = Grammar(GrammarKind.REGEX, "(ab)+c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=512)


@pytest.fixture
def compiler(folder: Path) -> Iterator[GrammarCompiler]:
    running = GrammarCompiler(lambda: GrammarVocabulary.load(folder, vocab_size=512, eos_token_ids={2}))
    yield running
    running.close()


@pytest.fixture
def ids(folder: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


def session(grammar: Grammar | None, tokens: list[int], prompt_len: int) -> DraftSession:
    edits = LogitEdits(grammar=grammar, end_token_ids=(EOS_TOKEN_ID,))
    sampling = SamplingParams(temperature=0.0, edits=edits)
    return DraftSession(SessionKey(1, "s"), 1, sampling, tokens, prompt_len=prompt_len)


def allowed(mask: torch.Tensor | None) -> set[int] | None:
    if mask is None:
        return None
    bits = (mask.view(torch.uint8)[:, None] >> torch.arange(8)) & 1
    return set(bits.flatten().nonzero().flatten().tolist())


def test_the_mask_is_for_what_comes_after_committed_and_drafted_tokens(
    compiler: GrammarCompiler, ids: dict[str, int]
) -> None:
    a, b, c = ids["a"], ids["b"], ids["c"]
    grammars, own = DraftGrammars(compiler), session(WORD, [9, 8, a], prompt_len=2)
    grammars.open(own)
    compiler.submit(WORD).result(timeout=60)
    assert allowed(grammars.mask(own, own.ahead)) == {b}
    own.ahead = [b, a]
    assert allowed(grammars.mask(own, own.ahead)) == {b}
    own.ahead = [b, a, b]
    after = allowed(grammars.mask(own, own.ahead))
    assert after is not None and {a, c} <= after and b not in after
    # The draft was right up to `b`, then the target went another way.
    own.commit([b, c])
    assert allowed(grammars.mask(own, own.ahead)) == {EOS_TOKEN_ID}


def test_a_draft_that_agrees_is_not_followed_again(compiler: GrammarCompiler, ids: dict[str, int]) -> None:
    a, b = ids["a"], ids["b"]
    grammars, own = DraftGrammars(compiler), session(WORD, [9, a], prompt_len=1)
    grammars.open(own)
    compiler.submit(WORD).result(timeout=60)
    own.ahead = [b, a, b]
    before = allowed(grammars.mask(own, own.ahead))
    own.commit([b, a])
    assert own.ahead == [b]
    assert allowed(grammars.mask(own, own.ahead)) == before


def test_tokens_that_were_drafted_without_a_mask_cost_the_mask_until_they_are_gone(
    compiler: GrammarCompiler, ids: dict[str, int]
) -> None:
    a, b = ids["a"], ids["b"]
    grammars, own = DraftGrammars(compiler), session(WORD, [9], prompt_len=1)
    grammars.open(own)
    compiler.submit(WORD).result(timeout=60)
    own.ahead = [a, a, b]
    assert grammars.mask(own, own.ahead) is None
    own.commit([a, b])
    after = allowed(grammars.mask(own, own.ahead))
    assert after is not None and a in after and b not in after


def test_a_grammar_that_the_target_left_is_followed_no_further(
    compiler: GrammarCompiler, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each row of each round would go through all the text since."""
    a, b = ids["a"], ids["b"]
    grammars, own = DraftGrammars(compiler), session(WORD, [9, b], prompt_len=1)
    grammars.open(own)
    compiler.submit(WORD).result(timeout=60)
    assert grammars.mask(own, own.ahead) is None
    monkeypatch.setattr(GrammarMatcher, "accept", lambda *_: pytest.fail("it is followed on"))
    own.commit([a])
    assert grammars.mask(own, own.ahead) is None


def test_a_defect_of_the_compiler_costs_the_mask_only(ids: dict[str, int]) -> None:
    def load() -> GrammarVocabulary:
        raise TypeError("a defect")

    broken = GrammarCompiler(load)
    grammars, own = DraftGrammars(broken), session(WORD, [9], prompt_len=1)
    grammars.open(own)
    with pytest.raises(TypeError):
        broken.submit(WORD).result(timeout=60)
    assert grammars.mask(own, own.ahead) is None
    broken.close()


def test_while_a_grammar_is_compiled_there_is_no_mask(folder: Path, ids: dict[str, int]) -> None:
    gate = threading.Event()

    def load() -> GrammarVocabulary:
        gate.wait(60)
        return GrammarVocabulary.load(folder, vocab_size=512, eos_token_ids={2})

    compiler = GrammarCompiler(load)
    grammars, own = DraftGrammars(compiler), session(WORD, [9], prompt_len=1)
    grammars.open(own)
    assert grammars.mask(own, own.ahead) is None
    gate.set()
    compiler.submit(WORD).result(timeout=60)
    after = allowed(grammars.mask(own, own.ahead))
    assert after is not None and ids["a"] in after and ids["b"] not in after
    compiler.close()


@pytest.mark.parametrize(
    "grammar", [None, Grammar(GrammarKind.REGEX, "("), Grammar(GrammarKind.GRAMMAR, "?")]
)
def test_without_a_grammar_that_compiles_there_is_no_mask(
    compiler: GrammarCompiler, grammar: Grammar | None
) -> None:
    grammars, own = DraftGrammars(compiler), session(grammar, [9], prompt_len=1)
    grammars.open(own)
    if grammar is not None:
        assert compiler.submit(grammar).exception(timeout=60) is not None
    assert grammars.mask(own, own.ahead) is None
    assert grammars.mask(own, own.ahead) is None
    own.commit([5])
    grammars.close(own)
    grammars.close(own)


def test_a_compiler_that_is_full_costs_the_mask_only(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.structured.compiler._MOST_WAITING", 0)
    grammars, own = DraftGrammars(compiler), session(WORD, [9], prompt_len=1)
    grammars.open(own)
    assert grammars.mask(own, own.ahead) is None
