"""Medusa heads propose what the published modules say, whatever the batch; bad input costs one session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from outrider.core.params import Acceptance, LogitEdits, SamplingParams
from outrider.core.rounds import StaleReason
from outrider.core.trees import TokenTree
from outrider.wire.messages import CloseDraft, FeatureBlock, Stale
from tests.unit.core.reference_edits import edited
from tests.unit.drafting.heads.bench import GREEDY, HIDDEN, RANDOM, VOCAB
from tests.unit.drafting.heads.medusa_bench import HEADS, MedusaBench, Text

SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])


@SAMPLINGS
@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("own", [True, False], ids=["own", "targets"])
@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
def test_chain_is_the_references(sampling: SamplingParams, layers: int, own: bool, reduced: bool) -> None:
    bench, text = MedusaBench(layers=layers, own=own, reduced=reduced), Text("a")
    tree = bench.propose(text.open(sampling))
    assert len(tree) == HEADS
    assert tree.is_chain
    bench.check(text, tree, sampling)


@SAMPLINGS
@pytest.mark.parametrize(("shape", "widths"), [("3,2,1,1", (3, 2, 1, 1)), ("dynamic", (4,) * 4)])
def test_tree_is_the_references(shape: str, widths: tuple[int, ...], sampling: SamplingParams) -> None:
    bench, text = MedusaBench(tree=shape), Text("a")
    tree = bench.propose(text.open(sampling, nodes=20))
    assert len(tree) == 20
    assert max(tree.depths()) >= 2
    bench.check(text, tree, sampling, widths=widths)


def test_no_deeper_than_there_are_heads() -> None:
    bench, text = MedusaBench(), Text("a")
    tree = bench.propose(text.open(length=HEADS + 3))
    assert len(tree) == HEADS
    bench.check(text, tree)
    assert len(bench.propose(text.advance((), length=2, features=False))) == 2


def test_rounds_go_on_from_the_last_state() -> None:
    bench, text = MedusaBench(tree="2,2,1", batch_invariance="exact"), Text("a")
    tree = bench.propose(text.open(nodes=10, length=3))
    for accepted in (0, 2, 1, 3, 0):
        path = tree.path_to(len(tree) - 1)[:accepted]
        committed = [*(tree.token_ids[node] for node in path), 17]
        tree = bench.propose(text.advance(committed, length=3, nodes=10))
        bench.check(text, tree, widths=(2, 2, 1))


def test_a_proposal_does_not_depend_on_the_batch() -> None:
    texts = [Text(f"t{number}", seed=number, length=10 + number) for number in range(40)]
    together = MedusaBench(tree="3,2,1", batch_invariance="exact")
    together.put(*(text.open(RANDOM, nodes=15, length=1 + index % 4) for index, text in enumerate(texts)))
    answers = together.run()
    alone = MedusaBench(tree="3,2,1", batch_invariance="exact")
    for index, text in enumerate(texts):
        assert answers[text.name] == alone.propose(text.open(RANDOM, nodes=15, length=1 + index % 4))
        alone.put(CloseDraft(text.name, 1))
    together.check(texts[3], alone.propose(texts[3].open(RANDOM, nodes=15)), RANDOM, widths=(3, 2, 1))


def test_without_its_state_nothing_is_proposed_at_once() -> None:
    bench, text = MedusaBench(), Text("a")
    assert len(bench.propose(text.open(features=()))) == 0
    assert len(bench.propose(text.advance((5,), features=False))) == 0
    text.tokens.append(8)
    late = replace(text.advance((), features=True), base_len=31, token_ids=(8,))
    tree = bench.propose(late)
    assert len(tree) == HEADS
    bench.check(text, tree)
    # What is old serves no more.
    assert len(bench.propose(text.advance((5, 6), features=False))) == 0


def test_more_rows_than_needed_do_no_harm() -> None:
    bench, text = MedusaBench(), Text("a")
    tree = bench.propose(text.open(features=(text.block(3, 9), text.block(9, 29))))
    bench.check(text, tree)
    assert bench.propose(text.open(features=(text.block(9, 29), text.block(3, 9)))) == tree


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "edits",
    [
        LogitEdits(repetition_penalty=1.8),
        LogitEdits(frequency_penalty=1.9, presence_penalty=0.7),
        LogitEdits(allowed_token_ids=tuple(range(100, 160))),
        LogitEdits(logit_bias=((7, 30.0), (9, -30.0))),
    ],
    ids=["repetition", "frequency", "allowed", "bias"],
)
@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
def test_each_node_is_edited_by_its_own_path(edits: LogitEdits, temperature: float, reduced: bool) -> None:
    bench, text = MedusaBench(tree="2,2,1", reduced=reduced), Text("a")
    sampling = SamplingParams(temperature, seed=3, edits=edits)
    prompt = list(text.tokens)

    def edit(logits: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        row = torch.full((VOCAB,), -1e9).index_copy(0, bench.ids, logits)
        output = [*text.tokens[len(prompt) :], *path]
        return torch.tensor(edited(row.tolist(), edits, prompt, output))[bench.ids]

    tree = bench.propose(text.open(sampling, nodes=10, length=3))
    bench.check(text, tree, sampling, widths=(2, 2, 1), edit=edit)
    tree = bench.propose(text.advance([*tree.token_ids[:1], 120, 120], nodes=10, length=3))
    assert len(tree) == 10
    bench.check(text, tree, sampling, widths=(2, 2, 1), edit=edit)


@pytest.mark.parametrize("acceptance", [Acceptance.TOKEN, Acceptance.BLOCK])
@pytest.mark.parametrize(("shape", "nodes"), [("chain", 4), ("2,1,1,1", 8)])
def test_drawn_tokens_carry_their_law(acceptance: Acceptance, shape: str, nodes: int) -> None:
    bench, text = MedusaBench(tree=shape), Text("a")
    command = replace(text.open(SamplingParams(0.8, seed=5, top_k=20), nodes=nodes), acceptance=acceptance)
    tree = bench.propose(command)
    assert len(tree) == nodes == len(tree.draft_probs)
    said = bench.reference.say(text.states[28].float())
    eldest = {parent: next(iter(own.values())) for parent, own in tree.children().items()}
    for node, (law, depth) in enumerate(zip(tree.draft_probs, tree.depths(), strict=True)):
        assert tree.token_ids[node] in law.token_ids
        if eldest[tree.parents[node]] != node:
            continue  # a younger sibling's law is what its elders left
        top = said[depth].topk(20)
        expected = dict(zip(top.indices.tolist(), (top.values / 0.8).softmax(0).tolist(), strict=True))
        told = dict(zip(law.token_ids, law.probs, strict=True))
        assert told.keys() == expected.keys()
        assert all(abs(told[token_id] - expected[token_id]) < 1e-4 for token_id in told)


def test_dynamic_trees_choose_where_tokens_would_be_drawn() -> None:
    bench, text = MedusaBench(tree="dynamic"), Text("a")
    tree = bench.propose(replace(text.open(RANDOM, nodes=12), acceptance=Acceptance.TOKEN))
    assert len(tree) == 12
    assert not tree.draft_probs


Spoil = Callable[[FeatureBlock], FeatureBlock]
FAULTS: dict[str, tuple[Spoil, str]] = {
    "beyond": (lambda block: replace(block, first_position=29), "tokens can have features"),
    "width": (lambda block: replace(block, columns=32, rows=2), f"the head takes {HIDDEN}"),
    "unknown": (lambda block: replace(block, name="hidden_2"), "was not asked for"),
    "infinite": (lambda block: replace(block, data=b"\x80\x7f" + block.data[2:]), "not finite"),
    "short": (lambda block: replace(block, data=block.data[:-2]), "bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_features_cost_their_own_session(fault: str) -> None:
    spoil, message = FAULTS[fault]
    bench, good, bad = MedusaBench(), Text("good", seed=1), Text("bad")
    bench.put(good.open(), bad.open(features=(spoil(bad.block()),)))
    answers = bench.run()
    stale, tree = answers["bad"], answers["good"]
    assert isinstance(stale, Stale)
    assert stale.reason is StaleReason.INVALID
    assert message in stale.detail
    assert isinstance(tree, TokenTree)
    bench.check(good, tree)
