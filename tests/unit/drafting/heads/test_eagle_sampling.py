"""A head draws as its target does: with the session's edits along each path, by the rule in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from outrider.core.params import Acceptance, LogitEdits, SamplingParams
from tests.unit.core.reference_edits import edited
from tests.unit.drafting.heads.bench import VOCAB, Bench, Text, advance, open_

EDITS = (
    LogitEdits(repetition_penalty=1.8),
    LogitEdits(frequency_penalty=1.9, presence_penalty=0.7),
    LogitEdits(allowed_token_ids=tuple(range(100, 160))),
)
PROMPT_LEN = 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("edits", EDITS, ids=["repetition", "frequency", "allowed"])
def test_each_node_is_edited_by_its_own_path(edits: LogitEdits, temperature: float) -> None:
    bench, text = Bench("eagle3", tree="2,2,1"), Text("a", "eagle3", PROMPT_LEN)
    sampling = SamplingParams(temperature, seed=3, edits=edits)
    ids = bench.reference.target_ids()

    def edit(logits: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        row = torch.full((VOCAB,), -1e9).index_copy(0, ids, logits)
        output = [*text.tokens[PROMPT_LEN:], *path]
        return torch.tensor(edited(row.tolist(), edits, text.tokens[:PROMPT_LEN], output))[ids]

    tree = bench.propose(open_(text, sampling=sampling, nodes=10, length=3))
    bench.check(text, tree, sampling, widths=(2, 2, 1), edit=edit)
    tree = bench.propose(advance(text, [*tree.token_ids[:1], 120, 120], nodes=10, length=3))
    assert len(tree) == 10
    bench.check(text, tree, sampling, widths=(2, 2, 1), edit=edit)


@pytest.mark.parametrize("acceptance", [Acceptance.TOKEN, Acceptance.BLOCK])
@pytest.mark.parametrize(("shape", "nodes"), [("chain", 4), ("2,1,1,1", 8)])
def test_drawn_tokens_carry_their_law(acceptance: Acceptance, shape: str, nodes: int) -> None:
    bench, text = Bench("eagle3", tree=shape), Text("a", "eagle3", 30)
    sampling = SamplingParams(0.8, seed=5, top_k=20)
    command = replace(open_(text, sampling=sampling, nodes=nodes), acceptance=acceptance)
    tree = bench.propose(command)
    assert len(tree) == nodes == len(tree.draft_probs)
    ids = bench.reference.target_ids()
    features, tokens = text.states[:29].float(), text.tokens[1:]
    eldest = {parent: next(iter(own.values())) for parent, own in tree.children().items()}
    for node, law in enumerate(tree.draft_probs):
        assert tree.token_ids[node] in law.token_ids
        parent = tree.parents[node]
        if eldest[parent] != node:
            continue  # a younger sibling's law is what its elders left
        path = [tree.token_ids[above] for above in tree.path_to(parent)]
        logits = bench.reference.after(features, tokens, path)
        top = logits.topk(20)
        expected = dict(zip(ids[top.indices].tolist(), (top.values / 0.8).softmax(0).tolist(), strict=True))
        told = dict(zip(law.token_ids, law.probs, strict=True))
        assert told.keys() == expected.keys()
        assert all(abs(told[token_id] - expected[token_id]) < 1e-4 for token_id in told)


def test_dynamic_trees_choose_where_tokens_would_be_drawn() -> None:
    """To keep the likeliest of drawn tokens would change their law, so they carry none."""
    bench, text = Bench("eagle3", tree="dynamic"), Text("a", "eagle3", 30)
    command = replace(open_(text, sampling=SamplingParams(seed=5), nodes=12), acceptance=Acceptance.TOKEN)
    tree = bench.propose(command)
    assert len(tree) == 12
    assert not tree.draft_probs
