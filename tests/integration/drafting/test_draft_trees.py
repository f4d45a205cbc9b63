"""Trees of a draft model through the real engine are what plain forwards over each path give."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from outrider.core.params import Acceptance, LogitEdits, SamplingParams
from outrider.core.ranking import ranked_picks
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import GrowingTree
from outrider.drafting.model.draft_model import DraftModel
from outrider.wire.messages import AdvanceDraft, OpenDraft, Stale
from tests.integration.drafting.oracle import Oracle
from tests.integration.drafting.test_draft_model import PARAMS, PROMPT, VOCAB, Driver, load
from tests.tiny_models import make_tiny
from tests.unit.core.reference_edits import edited

SHAPES = ("3,2,1", "2,2,2,2", "dynamic")
LENGTH, NODES = 4, 6
TOP_K = 3


class TreeOracle(Oracle):
    """Grows trees on plain forwards of whole paths, edited by the plain implementation."""

    def __init__(self, folder: Path, prompt_len: int) -> None:
        super().__init__(folder)
        self.prompt_len = prompt_len
        self._after = cache(self._rank)

    def tree(
        self, tokens: tuple[int, ...], params: SamplingParams, shape: str, length: int, nodes: int
    ) -> TokenTree:
        growing = GrowingTree(TreeShape.parse(shape, TOP_K).within(length, nodes), depth=length, nodes=nodes)
        while not growing.done:
            for node in growing.frontier:
                growing.grow(node, *self._after(tokens + growing.above(node), params, growing.children))
        return growing.proposal()

    def _rank(
        self, tokens: tuple[int, ...], params: SamplingParams, count: int
    ) -> tuple[list[int], list[float]]:
        with torch.no_grad():
            row = self.model(torch.tensor([tokens])).logits[0, -1].float()
        if params.edits != LogitEdits():
            prompt, output = tokens[: self.prompt_len], tokens[self.prompt_len :]
            row = torch.tensor(edited(row.tolist(), params.edits, prompt, output))
        ids, confidences = ranked_picks(row[None], [(params, len(tokens))], count)
        return ids[0].tolist(), confidences[0].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("draft"), vocab_size=VOCAB, max_position=160)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> TreeOracle:
    return TreeOracle(folder, 20)


def drafter(folder: Path, shape: str, **fields: object) -> DraftModel:
    return load(folder, tree=shape, tree_nodes=32, tree_top_k=TOP_K, **fields)


def same(got: Proposal | Stale, want: TokenTree) -> None:
    assert isinstance(got, Proposal), got
    assert (got.tree.token_ids, got.tree.parents) == (want.token_ids, want.parents)
    assert got.tree.confidences == pytest.approx(want.confidences, rel=1e-3)


EDITED = [
    SamplingParams(0.0, edits=LogitEdits(repetition_penalty=1.8, frequency_penalty=0.9)),
    SamplingParams(1.0, seed=3, edits=LogitEdits(bad_words=((8, 8),), logit_bias=((8, 20.0), (9, 19.0)))),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("run_ahead", [0, 5])
def test_trees_in_any_batch(folder: Path, oracle: TreeOracle, shape: str, run_ahead: int) -> None:
    """Sessions with other parameters, lengths and budgets, over commits along the tree and off it."""
    driver = Driver(drafter(folder, shape), run_ahead=run_ahead)
    driver.scheduler._max_draft_tokens = 16
    generator = random.Random(run_ahead)
    held: dict[str, tuple[tuple[int, ...], SamplingParams, int, int]] = {}
    for index, params in enumerate((*PARAMS, *EDITED, PARAMS[1])):
        name, tokens = f"s{index}", PROMPT[: 20 + 5 * index]
        held[name] = (tokens, params, LENGTH, (NODES, 15, 4)[index % 3])
        command = OpenDraft(name, 1, tokens, params, LENGTH, prompt_len=20, draft_nodes=held[name][3])
        driver.put(command)
    for _ in range(4):
        events = driver.rest()
        assert len(events) == len(held)
        for event in events:
            tokens, params, length, nodes = held[event.session_id]
            want = oracle.tree(tokens, params, shape, length, nodes)
            assert (len(want) > length) == (nodes > length) or shape == "3,2,1"
            same(event, want)
            assert isinstance(event, Proposal)
            leaf = generator.randrange(-1, len(event.tree))
            path = tuple(event.tree.token_ids[node] for node in event.tree.path_to(leaf))
            fresh = (*path, generator.randrange(VOCAB), *PROMPT[: generator.choice((0, 0, 3))])
            length, nodes = generator.randrange(1, 5), generator.choice((0, 5, 7, 15))
            driver.put(
                AdvanceDraft(event.session_id, 1, len(tokens), fresh, len(path), length, draft_nodes=nodes)
            )
            held[event.session_id] = (tokens + fresh, params, length, max(length, nodes))
    driver.rest()
    driver.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_commits_in_the_middle_of_a_tree(folder: Path, oracle: TreeOracle, shape: str) -> None:
    """The verifier did not wait: the tree is dropped half grown, whatever of it ran."""
    driver = Driver(drafter(folder, shape))
    driver.scheduler._max_draft_tokens = 16
    tokens, params = PROMPT[:30], PARAMS[1]
    driver.put(OpenDraft("a", 1, tokens, params, 3, prompt_len=20, draft_nodes=9))
    for steps in (1, 2, 3, 2):
        for _ in range(steps):
            driver.step()
        fresh = oracle.propose(tokens, params, steps)
        driver.put(AdvanceDraft("a", 1, len(tokens), fresh, steps - 1, 3, draft_nodes=9))
        tokens += fresh
    (event,) = driver.rest()
    same(event, oracle.tree(tokens, params, shape, 3, 9))
    driver.close()


def test_kv_of_the_accepted_path_is_kept(folder: Path) -> None:
    method = drafter(folder, "2,2,2")
    driver = Driver(method)
    driver.scheduler._max_draft_tokens = 16
    event = driver.ask(OpenDraft("a", 1, PROMPT[:30], PARAMS[0], 3, prompt_len=20, draft_nodes=14))
    assert isinstance(event, Proposal)
    (draft,) = method._drafts.values()
    for leaf, kept in ((len(event.tree) - 1, 2), (0, 1)):
        path = [event.tree.token_ids[node] for node in event.tree.path_to(leaf)]
        length = draft.sequence.kv_len
        driver.put(AdvanceDraft("a", 1, length, (*path, 5), len(path), 3, draft_nodes=14))
        assert draft.sequence.kv_len == length + kept, "the last level has not run"
        (event,) = driver.rest()
        assert isinstance(event, Proposal)
    driver.close()


def test_a_session_takes_turns_between_chains_and_trees(folder: Path, oracle: TreeOracle) -> None:
    """Chains run ahead; what they had drafted is no part of a tree."""
    driver = Driver(drafter(folder, "dynamic"), run_ahead=6)
    driver.scheduler._max_draft_tokens = 16
    tokens, params = PROMPT[:30], PARAMS[2]
    event = driver.ask(OpenDraft("a", 1, tokens, params, 3, prompt_len=20))
    for nodes in (0, 8, 0, 3, 12, 12, 0):
        fresh = oracle.propose(tokens, params, 2)
        event = driver.ask(AdvanceDraft("a", 1, len(tokens), fresh, 1, 3, draft_nodes=nodes))
        tokens += fresh
        same(event, oracle.tree(tokens, params, "dynamic", 3, max(3, nodes)))
        # Nothing is committed, another shape is asked for.
        other = 7 if nodes <= 3 else 0
        event = driver.ask(AdvanceDraft("a", 1, len(tokens), (), 0, 3, draft_nodes=other))
        same(event, oracle.tree(tokens, params, "dynamic", 3, max(3, other)))
    driver.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_full_pool(folder: Path, oracle: TreeOracle, shape: str) -> None:
    """Sessions that find no room give way; those that stay get their trees."""
    driver = Driver(drafter(folder, shape, pool_tokens=256, prefix_cache=False))
    driver.scheduler._max_draft_tokens = 16
    held = {name: (ord(name), *PROMPT[:50]) for name in "abcdef"}
    for _ in range(4):
        for name, tokens in held.items():
            driver.put(OpenDraft(name, 1, tokens, PARAMS[1], 4, prompt_len=20, draft_nodes=15))
        for event in driver.rest():
            if isinstance(event, Proposal):
                same(event, oracle.tree(held[event.session_id], PARAMS[1], shape, 4, 15))
            else:
                assert event.reason in (StaleReason.FULL, StaleReason.UNKNOWN)
                assert "failed" not in event.detail
    driver.close()


@pytest.mark.parametrize("rule", [Acceptance.TOKEN, Acceptance.BLOCK])
@pytest.mark.parametrize("shape", ["3,2,1", "dynamic", "chain"])
def test_laws_of_what_is_drawn(folder: Path, rule: Acceptance, shape: str) -> None:
    """Chains and static trees are drawn and say from what; dynamic trees are chosen. All can be repeated."""
    trees = []
    for _ in range(2):
        driver = Driver(drafter(folder, shape))
        driver.scheduler._max_draft_tokens = 16
        params = replace(PARAMS[1], temperature=1.4)
        command = OpenDraft("a", 1, PROMPT[:30], params, 3, prompt_len=20, draft_nodes=12, acceptance=rule)
        event = driver.ask(command)
        assert isinstance(event, Proposal)
        trees.append(event.tree)
        event = driver.ask(AdvanceDraft("a", 1, 30, (5, 6), 0, 3, draft_nodes=12))
        assert isinstance(event, Proposal)
        trees.append(event.tree)
        driver.close()
    assert trees[:2] == trees[2:]
    tree = trees[0]
    assert len(tree.draft_probs) == (0 if shape == "dynamic" else len(tree))
    assert len(tree.confidences) == len(tree) == {"chain": 3, "dynamic": 12, "3,2,1": 12}[shape]
    for node, law in enumerate(tree.draft_probs):
        elders = {tree.token_ids[own] for own in range(node) if tree.parents[own] == tree.parents[node]}
        assert tree.token_ids[node] in law.token_ids and not elders & set(law.token_ids)
        assert sum(law.probs) == pytest.approx(1.0, abs=1e-5)


def test_the_context_of_the_draft_model(folder: Path, oracle: TreeOracle) -> None:
    driver = Driver(drafter(folder, "dynamic"))
    driver.scheduler._max_draft_tokens = 16
    tokens = (PROMPT * 2)[:158]
    event = driver.ask(OpenDraft("a", 1, tokens, PARAMS[0], 6, prompt_len=20, draft_nodes=12))
    same(event, oracle.tree(tokens, PARAMS[0], "dynamic", 3, 12))
    driver.close()
