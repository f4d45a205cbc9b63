"""The packed forward over the paged pool computes what the plain transformers forward computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers

from outrider.config.schema import EngineConfig
from outrider.core.trees import TokenTree
from outrider.engine.api import StepItem
from outrider.engine.engine import Engine
from outrider.engine.loading import SUPPORTED
from tests.tiny_models import TINY_KINDS, make_tiny
from tests.unit.engine.stepping import run, run_chain

CONFIG = EngineConfig(dtype="float32", pool_tokens=2048, batch_invariance="off")
TOLERANCE = 1e-5
LEAN = ("llama", "mistral", "qwen2", "qwen3")


def plain(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0]


def test_every_supported_architecture_is_tested() -> None:
    assert set(TINY_KINDS) == set(SUPPORTED)


@pytest.mark.parametrize(
    ("kind", "lean"), [(kind, False) for kind in TINY_KINDS] + [(kind, True) for kind in LEAN]
)
def test_equals_the_plain_forward(kind: str, lean: bool, tmp_path: Path) -> None:
    folder = make_tiny(kind, tmp_path / kind)
    engine = Engine.load(folder, CONFIG, lean=lean)
    generator = random.Random(1)
    first, second = ([generator.randrange(512) for _ in range(60)] for _ in range(2))
    want_first, want_second = plain(folder, first), plain(folder, second)

    # Ragged prefill of two sequences in one step.
    one, two = engine.open(first), engine.open(second)
    assert engine.reserve(one, 33) and engine.reserve(two, 7)
    chunks = [StepItem(one, TokenTree.chain(first[:33])), StepItem(two, TokenTree.chain(second[:7]))]
    output = engine.step(chunks)
    assert (output.logits[output.rows[0]] - want_first[:33]).abs().max() <= TOLERANCE
    assert (output.logits[output.rows[1]] - want_second[:7]).abs().max() <= TOLERANCE
    engine.commit(one, range(33))
    engine.commit(two, range(7))

    # A tree with wrong branches; the right path is not contiguous and gets compacted.
    wrong = (first[33] + 1) % 512
    tree = TokenTree((first[33], wrong, first[34], wrong, first[35], wrong), (-1, 0, 0, 1, 2, 2))
    logits = run(engine, one, tree, [0, 2, 4])
    assert (logits[[0, 2, 4]] - want_first[33:36]).abs().max() <= TOLERANCE

    # A wrong draft is forgotten; committed tokens are rolled back and run again.
    assert engine.reserve(one, 5)
    engine.step([StepItem(one, TokenTree.chain([first[36], wrong, wrong]))])
    engine.commit(one, [0])
    engine.rollback(one, 30)
    assert (run_chain(engine, one, first[30:]) - want_first[30:]).abs().max() <= TOLERANCE
    assert (run_chain(engine, two, second[7:]) - want_second[7:]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("lean", [True, False])
def test_a_restricted_head_gives_those_columns(lean: bool, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "llama")
    rows = torch.tensor([7, 3, 500, 44])
    tokens = [5, 9, 11]
    whole = Engine.load(folder, CONFIG, lean=lean)
    restricted = Engine.load(folder, CONFIG, lean=lean, head_rows=rows)
    want = run_chain(whole, whole.open(tokens), tokens)[:, rows]
    assert torch.allclose(run_chain(restricted, restricted.open(tokens), tokens), want, atol=TOLERANCE)
