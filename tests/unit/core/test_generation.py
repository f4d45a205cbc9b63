"""A toy model, real picks, real walks: on equals off, whatever is proposed, also after a restart."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from tests.unit.core.strategies import all_trees

VOCABULARY = 40
LENGTH = 24
PROMPT = (3, 1, 4)
Drafter = Callable[[tuple[int, ...], SamplingParams], TokenTree]


def logits_after(tokens: tuple[int, ...], *, flavour: int = 0) -> torch.Tensor:
    """The toy model: logits fixed by the last three tokens."""
    a, b, c = tokens[-3:]
    generator = torch.Generator().manual_seed(a * 1601 + b * 41 + c)
    row = torch.randn(VOCABULARY, generator=generator) * 2.0
    if flavour:
        row = row + torch.randn(VOCABULARY, generator=generator) * 0.7
    return row


def picks_over(tree: TokenTree, tokens: tuple[int, ...], params: SamplingParams) -> list[int]:
    histories = [tokens] + [
        tokens + tuple(tree.token_ids[above] for above in tree.path_to(node)) for node in range(len(tree))
    ]
    logits = torch.stack([logits_after(history) for history in histories])
    picks: list[int] = coupled_picks(logits, [(params, len(history)) for history in histories]).tolist()
    return picks


def generate(
    params: SamplingParams, drafter: Drafter, start: tuple[int, ...] = PROMPT
) -> tuple[tuple[int, ...], int]:
    tokens, accepted = start, 0
    while len(tokens) < LENGTH:
        tree = drafter(tokens, params)
        result = walk(tree, picks_over(tree, tokens, params))
        accepted += len(result.nodes)
        tokens = (tokens + result.token_ids)[:LENGTH]
    return tokens, accepted


def nothing(tokens: tuple[int, ...], params: SamplingParams) -> TokenTree:
    return TokenTree()


def draft_model(tokens: tuple[int, ...], params: SamplingParams) -> TokenTree:
    """Another model with the same noise: what a drafter does."""
    drafted = tokens
    for _ in range(4):
        logits = logits_after(drafted, flavour=1)[None]
        drafted = (*drafted, int(coupled_picks(logits, [(params, len(drafted))])[0]))
    return TokenTree.chain(drafted[len(tokens) :])


def garbage(tokens: tuple[int, ...], params: SamplingParams) -> TokenTree:
    draw = random.Random(len(tokens))
    return TokenTree.chain([draw.randrange(VOCABULARY) for _ in range(draw.randrange(6))])


def trees(tokens: tuple[int, ...], params: SamplingParams) -> TokenTree:
    """The draft model's chain among other branches, in every shape in turn."""
    shapes = [tree for tree in all_trees(2, 3) if len(tree) == 3]
    shape = shapes[len(tokens) % len(shapes)]
    good = draft_model(tokens, params).token_ids
    depths = shape.depths()
    ids = [
        (good[depth] + token * 7) % VOCABULARY for depth, token in zip(depths, shape.token_ids, strict=True)
    ]
    return TokenTree(tuple(ids), shape.parents)


SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1),
    SamplingParams(seed=2**64 - 1, temperature=0.7, top_p=0.9),
    SamplingParams(seed=3, top_k=5),
    SamplingParams(seed=4, min_p=0.1, temperature=1.5),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_on_equals_off(params: SamplingParams) -> None:
    expected, _ = generate(params, nothing)
    for drafter in (draft_model, garbage, trees):
        tokens, _ = generate(params, drafter)
        assert tokens == expected


@pytest.mark.parametrize("params", SETTINGS)
def test_a_restart_at_any_token_goes_on_alike(params: SamplingParams) -> None:
    expected, _ = generate(params, draft_model)
    for length in range(len(PROMPT), LENGTH):
        assert generate(params, nothing, expected[:length])[0] == expected


def test_a_coupled_draft_is_accepted_often() -> None:
    """With the noise of the target; with other noise it would be far less."""

    def uncoupled(tokens: tuple[int, ...], params: SamplingParams) -> TokenTree:
        return draft_model(tokens, SamplingParams(seed=params.seed + 1000))

    coupled = sum(generate(SamplingParams(seed=seed), draft_model)[1] for seed in range(6))
    independent = sum(generate(SamplingParams(seed=seed), uncoupled)[1] for seed in range(6))
    assert coupled > 2 * independent
