"""EAGLE and EAGLE-3 heads propose what the published code would, whatever the batch and the chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.core.params import SamplingParams
from outrider.core.trees import TokenTree
from tests.tiny_eagle import Kind
from tests.unit.drafting.heads.bench import GREEDY, RANDOM, Bench, Text, advance, open_

KINDS: tuple[Kind, ...] = ("eagle", "eagle3")


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_chain_is_the_references(kind: Kind, sampling: SamplingParams) -> None:
    bench, text = Bench(kind), Text("a", kind, 40)
    tree = bench.propose(open_(text, sampling=sampling))
    assert len(tree) == 4
    assert tree.is_chain
    bench.check(text, tree, sampling)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize(("shape", "widths"), [("3,2,1,1", (3, 2, 1, 1)), ("dynamic", (4,) * 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_tree_is_the_references(
    kind: Kind, shape: str, widths: tuple[int, ...], sampling: SamplingParams
) -> None:
    bench, text = Bench(kind, tree=shape), Text("a", kind, 40)
    tree = bench.propose(open_(text, sampling=sampling, length=4, nodes=21))
    assert len(tree) == 21
    assert max(tree.depths()) >= 2
    bench.check(text, tree, sampling, widths=widths)


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_go_on_from_true_features(kind: Kind) -> None:
    bench, text = Bench(kind, tree="2,2,1", batch_invariance="exact"), Text("a", kind, 30)
    tree = bench.propose(open_(text, nodes=10, length=3))
    for accepted in (0, 2, 1, 3, 0):
        path = tree.path_to(len(tree) - 1)[:accepted]
        committed = [*(tree.token_ids[node] for node in path), 17]
        tree = bench.propose(advance(text, committed, length=3, nodes=10))
        bench.check(text, tree, GREEDY, widths=(2, 2, 1))
        again = Bench(kind, tree="2,2,1", batch_invariance="exact")
        assert tree == again.propose(open_(text, nodes=10, length=3))


@pytest.mark.parametrize("variant", ["norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"])
def test_variants_of_eagle3(variant: str) -> None:
    """Where else trainers have put a norm."""
    bench, text = Bench("eagle3", variant={variant: True}), Text("a", "eagle3", 40)
    plain = Bench("eagle3").propose(open_(text))
    tree = bench.propose(open_(text))
    assert tree.confidences != plain.confidences
    bench.check(text, tree, GREEDY)


def test_eagle_may_have_several_layers() -> None:
    bench = Bench("eagle", tree="2,1,1", variant={"num_hidden_layers": 3})
    text = Text("a", "eagle", 40)
    tree = bench.propose(open_(text, length=3, nodes=6))
    bench.check(text, tree, GREEDY, widths=(2, 1, 1))


@pytest.mark.parametrize("length", [2046, 2048])
def test_drafts_end_with_the_context(length: int) -> None:
    bench, text = Bench("eagle3"), Text("a", "eagle3", length)
    tree = bench.propose(open_(text, features=text.blocks(length - 30, length - 1)))
    assert len(tree) == min(4, 2049 - length)
    bench.check(text, tree, GREEDY, first=length - 30)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_proposals_do_not_depend_on_the_batch(dtype: str) -> None:
    lengths = (9, 300, 33, 2, 70)
    texts = [Text(f"s{seed}", "eagle3", length, seed) for seed, length in enumerate(lengths)]
    alone = {}
    for text in texts:
        bench = Bench("eagle3", tree="dynamic", batch_invariance="exact", dtype=dtype)
        alone[text.name] = bench.propose(open_(text, sampling=RANDOM, nodes=16))
    together = Bench("eagle3", tree="dynamic", batch_invariance="exact", dtype=dtype)
    together.put(*(open_(text, sampling=RANDOM, nodes=16) for text in texts))
    assert together.run() == alone


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_features_may_come_in_chunks(chunk: int) -> None:
    text = Text("a", "eagle3", 150)
    whole = Bench("eagle3", batch_invariance="exact").propose(open_(text))
    bench = Bench("eagle3", prefill_chunk=16, batch_invariance="exact")
    bench.put(open_(text, length=0, features=()))
    last = len(text.tokens) - 1
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        command = advance(text, (), length=4 if stop == last else 0, features=False)
        bench.put(replace(command, features=text.blocks(start, stop)))
        answers = bench.run()
    assert answers == {"a": whole}


def test_features_that_begin_late_are_enough() -> None:
    bench, text = Bench("eagle3"), Text("a", "eagle3", 60)
    tree = bench.propose(open_(text, features=text.blocks(25, 59)))
    assert len(tree) == 4
    bench.check(text, tree, GREEDY, first=25)


def test_without_the_last_features_nothing_is_proposed() -> None:
    bench, text = Bench("eagle3"), Text("a", "eagle3", 60)
    assert bench.propose(open_(text, features=())) == TokenTree()
    assert bench.propose(advance(text, (), features=False)) == TokenTree()
    late = replace(advance(text, (5,), features=False), features=text.blocks(0, 40))
    assert bench.propose(late) == TokenTree()
    rest = replace(advance(text, (), features=False), features=text.blocks(40, 60))
    tree = bench.propose(rest)
    assert len(tree) == 4
    bench.check(text, tree, GREEDY)


def test_wider_drafts_for_the_same_tokens() -> None:
    bench, text = Bench("eagle3"), Text("a", "eagle3", 20)
    short = bench.propose(open_(text, length=2))
    long = bench.propose(advance(text, (), length=5))
    assert long.token_ids[:2] == short.token_ids
    bench.check(text, long, GREEDY)
