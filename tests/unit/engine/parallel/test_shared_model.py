"""A model that several ranks share gives the tokens, features and bits of one that runs alone.

Followers run as threads of this process; all else is real.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
import transformers

from outrider.config.schema import VerifierConfig
from outrider.core.errors import InternalError
from outrider.core.features import LAST_HIDDEN, hidden_after
from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine
from outrider.engine.parallel.opening import open_engine
from outrider.engine.parallel.ranks import LostRankError, RankTask
from tests.threaded_ranks import Followers, ThreadedRanks
from tests.tiny_models import make_tiny
from tests.unit.engine.stepping import logits_of, run_chain

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=7)
PROMPT = [random.Random(5).randrange(500) for _ in range(40)]
COUNT = 48  # tokens of an output
FEATURES = (hidden_after(0), hidden_after(1), hidden_after(2), LAST_HIDDEN)

EXACT = [("llama", "float32", 2), ("wide", "bfloat16", 4)]
"""Kind, type, ranks of what is calibrated and probed."""

Draft = Callable[[list[int]], TokenTree]


def folder_of(kind: str) -> Path:
    """A tiny checkpoint; `wide`: shaped as real ones, with 8 heads of 64 and tied embeddings."""
    folder = Path(mkdtemp(prefix="shared")) / kind
    if kind != "wide":
        return make_tiny(kind, folder)
    make_tiny("llama", folder, vocab_size=2048)
    config = transformers.AutoConfig.from_pretrained(folder)
    shape = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    for name, value in {**shape, "head_dim": 64, "tie_word_embeddings": True}.items():
        setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.normal_(0.0, 0.1 if weight is not model.lm_head.weight else 0.02)
    model.save_pretrained(folder, safe_serialization=True)
    return folder


@cache
def alone(kind: str, dtype: str) -> tuple[Path, VerifierConfig, Engine]:
    folder = folder_of(kind)
    config = VerifierConfig(dtype=dtype, threads=1, pool_tokens=4096, batch_invariance="off")
    return folder, config, Engine.load(folder, config)


class Shared:
    """Engines of several ranks, each opened once."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int], Engine] = {}

    def __call__(self, kind: str, dtype: str, ranks: int) -> Engine:
        key = (kind, dtype, ranks)
        if key not in self._open:
            folder, config, _ = alone(kind, dtype)
            invariance = "exact" if (kind, dtype, ranks) in EXACT else "off"  # the probe takes seconds
            config = config.model_copy(update={"tensor_parallel": ranks, "batch_invariance": invariance})
            self._open[key] = open_engine(folder, config, launcher=ThreadedRanks())
        return self._open[key]

    def close(self) -> None:
        for engine in self._open.values():
            engine.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    engines = Shared()
    yield engines
    engines.close()


def nothing(_: list[int]) -> TokenTree:
    return TokenTree()


def guessing(truth: list[int], *, tree: bool) -> Draft:
    """Drafts that are right in two of three rounds; as a tree, next to wrong siblings."""

    def draft(tokens: list[int]) -> TokenTree:
        start = len(tokens) - len(PROMPT)
        chain = truth[start : start + 3]
        if start % 3 == 0:
            chain = [*chain[:1], *((token + 1) % 500 for token in chain[1:])]
        if not tree:
            return TokenTree.chain(chain)
        ids: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in chain:
            ids += [(token + 3) % 500, token]
            parents += [parent, parent]
            parent = len(ids) - 1
        return TokenTree(tuple(ids), tuple(parents))

    return draft


def decode(
    engine: Engine, params: SamplingParams, draft: Draft = nothing
) -> tuple[list[int], SequenceHandle]:
    """Tokens after PROMPT, and the sequence that holds them (but for the last one)."""
    sequence = engine.open(PROMPT)
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + COUNT:
        if sequence.kv_len < len(tokens) - 1:
            run_chain(engine, sequence, tokens[sequence.kv_len : -1])
        tree = draft(tokens).under(tokens[-1])
        assert engine.reserve(sequence, len(tree))
        logits = engine.step([StepItem(sequence, tree)]).logits
        rows = [(params, len(tokens) + depth) for depth in tree.depths()]
        walked = walk(draft(tokens), coupled_picks(logits, rows).tolist())
        engine.commit(sequence, [0, *(node + 1 for node in walked.nodes)])
        tokens += walked.token_ids
    return tokens[len(PROMPT) : len(PROMPT) + COUNT], sequence


SHAPES = [("llama", 2), ("qwen2", 2), ("wide", 4)]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("kind", "ranks"), SHAPES)
def test_tokens_are_those_of_one_rank(kind: str, ranks: int, params: SamplingParams, shared: Shared) -> None:
    want, _ = decode(alone(kind, "float32")[2], params)
    engine = shared(kind, "float32", ranks)
    assert len(set(want)) > COUNT // 8, "an output that repeats itself shows little"
    for draft in (nothing, guessing(want, tree=False), guessing(want, tree=True)):
        engine.clear_prefix_cache()
        got, sequence = decode(engine, params, draft)
        assert got == want
        engine.release(sequence)


@pytest.mark.parametrize(("kind", "dtype", "ranks"), EXACT)
def test_speculation_changes_no_bit_on_any_rank(kind: str, dtype: str, ranks: int, shared: Shared) -> None:
    engine = shared(kind, dtype, ranks)
    assert engine.batch_invariance == "exact"
    engine.clear_prefix_cache()
    want, plain = decode(engine, SEEDED)
    for tree in (False, True):
        engine.clear_prefix_cache()
        got, sequence = decode(engine, SEEDED, guessing(want, tree=tree))
        assert got == want
        held = min(sequence.kv_len, plain.kv_len)
        assert held >= len(PROMPT) + COUNT - 1
        for one in (sequence, plain):
            engine.rollback(one, held)
        assert torch.equal(engine._stored(sequence), engine._stored(plain)), "KV of all ranks"
        engine.release(sequence)


@pytest.mark.parametrize(("kind", "ranks"), [("llama", 2), ("wide", 4)])
def test_logits_are_those_of_one_rank(kind: str, ranks: int, shared: Shared) -> None:
    own, engine = alone(kind, "float32")[2], shared(kind, "float32", ranks)
    for tokens in (PROMPT * 3, PROMPT * 14):  # the latter past a KV length of 512
        for each in (own, engine):
            each.clear_prefix_cache()
        want = logits_of(own, tokens, chunk=100)
        got = logits_of(engine, tokens, chunk=64, singles=5)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_features_are_those_of_one_rank(shared: Shared) -> None:
    engines = alone("llama", "float32")[2], shared("llama", "float32", 2)
    want, _ = decode(engines[0], GREEDY)
    rows = []
    for engine in engines:
        engine.keep_features(FEATURES)
        tokens, sequence = decode(engine, GREEDY, guessing(want, tree=True))
        assert tokens == want
        engine.rollback(sequence, len(PROMPT) + COUNT - 2)
        rows.append([engine.features_of(sequence, name, 0, sequence.kv_len).float() for name in FEATURES])
        engine.keep_features(())
        engine.release(sequence)
    for one, other in zip(*rows, strict=True):
        assert one.abs().max() > 0.1
        # What differs by a rounding in float32 may differ by one in bfloat16, in which features are kept.
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-4)


def test_a_shared_block_is_copied_on_every_rank_before_it_is_written(shared: Shared) -> None:
    own, engine = alone("llama", "float32")[2], shared("llama", "float32", 2)
    outputs = []
    for each in (own, engine):
        each.clear_prefix_cache()
        first = each.open(PROMPT)
        run_chain(each, first, PROMPT)
        second = each.open(PROMPT)
        assert second.kv_len == 32
        each.rollback(second, 20)
        rows = [
            run_chain(each, second, [9, 8, 7]),
            run_chain(each, first, [1, 2]),
            run_chain(each, second, [6]),
        ]
        outputs.append(torch.cat(rows))
        each.release(first)
        each.release(second)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-4)


class Elsewhere(ThreadedRanks):
    """Launches ranks on a machine that has not the model."""

    def launch(self, tasks: list[RankTask]) -> Followers:
        return super().launch([replace(task, folder=task.folder / "elsewhere") for task in tasks])


def test_a_rank_that_cannot_load_says_why() -> None:
    folder, config, _ = alone("llama", "float32")
    with pytest.raises(InternalError, match=r"rank 1 of the model did not start: ConfigError: .*elsewhere"):
        open_engine(folder, config.model_copy(update={"tensor_parallel": 2}), launcher=Elsewhere())


def test_ranks_that_are_out_of_step_run_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails at rank 0 in the middle of a step leaves the others waiting for it."""
    folder, config, _ = alone("llama", "float32")
    config = config.model_copy(update={"tensor_parallel": 2, "rank_timeout_s": 2.0})
    engine = open_engine(folder, config, launcher=ThreadedRanks())
    assert engine.dead() == ""

    def full(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    sequence = engine.open(PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner._own, "forward", full)  # type: ignore[attr-defined]
        with pytest.raises(LostRankError, match="out of step: no room"):
            run_chain(engine, sequence, PROMPT)
    with pytest.raises(LostRankError, match="out of step: no room"):
        run_chain(engine, sequence, PROMPT)
    assert "no room" in engine.dead()
    engine.close()
    engine.close()
