"""Tiny targets and drafters, and the joint law of what several rounds emit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import torch

from outrider.core.acceptance import draw, judge
from outrider.core.params import Acceptance
from outrider.core.rounds import Walk
from outrider.core.trees import SparseProbs, TokenTree
from tests.unit.core.acceptance.enumeration import World, law_of

LENGTH = 3
VOCABULARY = 3
TOLERANCE = 1e-12
TOKEN, BLOCK = Acceptance.TOKEN, Acceptance.BLOCK
Tokens = tuple[int, ...]
Law = tuple[float, ...]
Model = Callable[[Tokens], Law]
Drafter = Callable[[Tokens, World], TokenTree]
Judge = Callable[[TokenTree, Callable[[int], torch.Tensor], "WorldUniforms"], Walk]

TARGETS: tuple[Law, ...] = (
    (0.5, 0.3, 0.2),
    (0.05, 0.0, 0.95),
    (0.0, 1.0, 0.0),
    (0.25, 0.7, 0.05),
    (0.1, 0.45, 0.45),
)
DRAFTS: tuple[Law, ...] = (
    (0.2, 0.3, 0.5),
    (0.6, 0.4, 0.0),
    (0.0, 0.0, 1.0),
    (0.25, 0.7, 0.05),
    (0.0, 0.9, 0.1),
    (1 / 3, 1 / 3, 1 / 3),
)


def _number(context: Tokens) -> int:
    return 5 * len(context) + sum((3 * index + 2) * token for index, token in enumerate(context))


def target(context: Tokens) -> Law:
    """Different for every context; zeros included."""
    return TARGETS[_number(context) % len(TARGETS)]


def drafts(context: Tokens) -> Law:
    """What drafters draw from: good, bad, one-hot, and blind to some of the target's tokens."""
    return DRAFTS[(2 * _number(context) + len(context)) % len(DRAFTS)]


def dense(law: Sequence[float]) -> torch.Tensor:
    return torch.tensor(law, dtype=torch.float64)


def sparse(law: Sequence[float]) -> SparseProbs:
    kept = [(token, prob) for token, prob in enumerate(law) if prob > 0]
    return SparseProbs(tuple(token for token, _ in kept), tuple(prob for _, prob in kept))


class WorldUniforms:
    """The numbers of one round."""

    def __init__(self, world: World, base_len: int) -> None:
        self._world, self._base_len = world, base_len

    def accept(self, node: int) -> float:
        return self._world.number("accept", self._base_len, node)  # type: ignore[return-value]

    def residual(self) -> float:
        return self._world.number("residual", self._base_len)  # type: ignore[return-value]

    def bonus(self) -> float:
        return self._world.number("bonus", self._base_len)  # type: ignore[return-value]


def rule(acceptance: Acceptance) -> Judge:
    """The real thing."""
    return lambda tree, probs, uniforms: judge(acceptance, tree, probs, uniforms)


def probs_over(tree: TokenTree, context: Tokens, model: Model) -> Callable[[int], torch.Tensor]:
    """The target after each node."""
    return lambda node: dense(model(context + tuple(tree.token_ids[above] for above in tree.path_to(node))))


def sampled_chain(length: int, model: Model = drafts) -> Drafter:
    """Draws each token from its law, and tells it."""

    def drafter(context: Tokens, world: World) -> TokenTree:
        tokens: Tokens = ()
        laws = []
        for _ in range(length):
            law = model(context + tokens)
            laws.append(sparse(law))
            tokens += (draw(dense(law), world.number("draft", len(context), len(tokens))),)  # type: ignore[arg-type]
        return TokenTree(tokens, TokenTree.chain(tokens).parents, tuple(laws))

    return drafter


def round_law(judge_by: Judge, drafter: Drafter, context: Tokens, model: Model) -> dict[Tokens, float]:
    """The law of the tokens that one round emits."""

    def one(world: World) -> Tokens:
        tree = drafter(context, world)
        probs = probs_over(tree, context, model)
        return judge_by(tree, probs, WorldUniforms(world, len(context))).token_ids

    return law_of(one)


def emitted_law(judge_by: Judge, drafter: Drafter, model: Model = target) -> dict[Tokens, float]:
    """The joint law of the first LENGTH tokens, over as many rounds as that takes.

    Rounds share no numbers, so that each is integrated by itself.
    """
    known = cache(lambda context: tuple(round_law(judge_by, drafter, context, model).items()))

    def after(context: Tokens) -> dict[Tokens, float]:
        if len(context) >= LENGTH:
            return {context[:LENGTH]: 1.0}
        law: dict[Tokens, float] = {}
        for emitted, chance in known(context):
            for tokens, rest in after(context + emitted).items():
                law[tokens] = law.get(tokens, 0.0) + chance * rest
        return law

    return after(())


def target_law(model: Model = target) -> dict[Tokens, float]:
    law = {}
    for tokens in product(range(VOCABULARY), repeat=LENGTH):
        chance = 1.0
        for index, token in enumerate(tokens):
            chance *= model(tokens[:index])[token]
        if chance:
            law[tokens] = chance
    return law
