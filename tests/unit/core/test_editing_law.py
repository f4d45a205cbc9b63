"""The law of the emitted tokens under edits, by enumeration: it is the target's, with any chain and any tree.

The noise of a position is a number u in (0, 1); a pick is the token on whose part of (0, 1) it falls. For
each position, (0, 1) is cut wherever any context's distribution has an edge: within a cell every context
picks one token. So a sum over cells is the whole law, and its probabilities are fractions: equality means
equality.
Edits, distributions and walk are the real ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import pytest
import torch

from outrider.core.editing import LogitRow, edit_logits
from outrider.core.history import TokenHistory
from outrider.core.params import LogitEdits, SamplingParams
from outrider.core.sampling import target_probs
from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from tests.unit.core.reference_edits import edited
from tests.unit.core.strategies import all_trees

VOCABULARY = 3
LENGTH = 3
PROMPT = (0, 1)
Tokens = tuple[int, ...]
Noise = Sequence[Fraction]
Law = tuple[Fraction, ...]

EDITS = {
    "repetition": LogitEdits(repetition_penalty=2.5),
    "frequency": LogitEdits(frequency_penalty=1.1),
    "presence": LogitEdits(presence_penalty=-0.9),
    "bias": LogitEdits(logit_bias=((2, 1.5), (0, -100.0))),
    "allowed": LogitEdits(allowed_token_ids=(1, 2)),
    "bad words": LogitEdits(bad_words=((1, 1), (2, 0, 1))),
    "min tokens": LogitEdits(min_tokens=2, end_token_ids=(0,)),
    "all": LogitEdits(
        bad_words=((2, 2), (1, 0, 1)),
        min_tokens=1,
        end_token_ids=(0,),
        logit_bias=((1, 0.7),),
        repetition_penalty=1.4,
        frequency_penalty=0.3,
        presence_penalty=0.2,
    ),
}


def logits_after(output: Tokens) -> list[float]:
    """The target's raw logits: different for every context."""
    salt = 5 * len(output) + sum((index + 2) * token for index, token in enumerate(output))
    return [math.sin(salt + 2.3 * token) * 2.0 for token in range(VOCABULARY)]


def as_law(logits: torch.Tensor, sampling: SamplingParams) -> list[Law]:
    laws = []
    for row in target_probs(logits, [sampling] * len(logits)).tolist():
        probs = [Fraction(prob) for prob in row]
        laws.append(tuple(prob / sum(probs) for prob in probs))
    return laws


class Model:
    """The target under some edits."""

    def __init__(self, edits: LogitEdits) -> None:
        self.sampling = SamplingParams(edits=edits)
        self.cells = [self._cells(length) for length in range(LENGTH)]
        self.rows = cache(self._rows)

    @cache  # noqa: B019 the models of a test are few
    def plain(self, output: Tokens) -> Law:
        """The distribution after these tokens, by the plain implementation of edits."""
        row = edited(logits_after(output), self.sampling.edits, PROMPT, output)
        return as_law(torch.tensor([row], dtype=torch.float32), self.sampling)[0]

    def _rows(self, output: Tokens, tree: TokenTree) -> list[Law]:
        """The distributions after the committed tokens and after each node, all edited in one."""
        above = [(), *(tuple(tree.token_ids[i] for i in tree.path_to(node)) for node in range(len(tree)))]
        logits = torch.tensor([logits_after(output + own) for own in above], dtype=torch.float32)
        history = TokenHistory(len(PROMPT))
        history.keep_up([*PROMPT, *output])
        edit_logits(logits, [LogitRow(self.sampling, history, own) for own in above])
        return as_law(logits, self.sampling)

    def _cells(self, length: int) -> list[tuple[Fraction, Fraction]]:
        """Middle and width of each cell of a position."""
        edges = {Fraction(0), Fraction(1)}
        for output in product(range(VOCABULARY), repeat=length):
            law = self.plain(output)
            edges |= {sum(law[:count], Fraction(0)) for count in range(1, VOCABULARY)}
        return [((low + high) / 2, high - low) for low, high in pairwise(sorted(edges))]

    def worlds(self) -> list[tuple[Noise, Fraction]]:
        """Each noise of all positions, and its probability."""
        return [
            (
                tuple(middle for middle, _ in cells),
                math.prod((width for _, width in cells), start=Fraction(1)),
            )
            for cells in product(*self.cells)
        ]


def pick(law: Law, u: Fraction) -> int:
    for token, prob in enumerate(law):
        if u < prob:
            return token
        u -= prob
    raise AssertionError("probabilities sum to 1")


def generate(model: Model, noise: Noise, drafter: Callable[[Tokens], TokenTree]) -> Tokens:
    output: Tokens = ()
    while len(output) < LENGTH:
        tree = drafter(output).pruned(LENGTH - len(output) - 1)
        depths = [0, *(depth + 1 for depth in tree.depths())]
        laws = model.rows(output, tree)
        picks = [pick(law, noise[len(output) + depth]) for law, depth in zip(laws, depths, strict=True)]
        output = (output + walk(tree, picks).token_ids)[:LENGTH]
    return output


def emitted_law(model: Model, drafter: Callable[[Tokens], TokenTree]) -> dict[Tokens, Fraction]:
    law: Counter[Tokens] = Counter()
    for noise, probability in model.worlds():
        law[generate(model, noise, drafter)] += probability  # type: ignore[assignment]
    return {tokens: Fraction(probability) for tokens, probability in law.items() if probability}


def target_law(model: Model) -> dict[Tokens, Fraction]:
    law = {}
    for tokens in product(range(VOCABULARY), repeat=LENGTH):
        chances = [model.plain(tokens[:index])[token] for index, token in enumerate(tokens)]
        if probability := math.prod(chances, start=Fraction(1)):
            law[tokens] = probability
    return law


@pytest.mark.parametrize("name", EDITS)
def test_the_law_is_the_targets_with_every_small_tree(name: str) -> None:
    model = Model(EDITS[name])
    want = target_law(model)
    assert sum(want.values()) == 1
    for tree in all_trees(VOCABULARY, most=2):
        assert emitted_law(model, lambda output, tree=tree: tree) == want


@pytest.mark.parametrize("name", EDITS)
def test_the_law_is_the_targets_with_larger_trees(name: str) -> None:
    model = Model(EDITS[name])
    want = target_law(model)
    full = TokenTree(
        (0, 1, 2, *(range(3)), *(range(3)), *(range(3))), (-1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 2)
    )
    chains = [TokenTree.chain(tokens) for tokens in ((2, 2), (1, 1), (0, 1), (2, 0, 1))]
    for first, later in product([full, *chains], repeat=2):
        assert emitted_law(model, lambda output, a=first, b=later: b if output else a) == want


def test_edits_differ_in_their_laws() -> None:
    laws = [target_law(Model(edits)) for edits in (LogitEdits(), *EDITS.values())]
    assert all(one != other for index, one in enumerate(laws) for other in laws[:index])


def test_the_test_would_notice_edits_that_forget_the_draft() -> None:
    """Rows edited as if nothing stood above them, for contrast, have another law."""
    model = Model(EDITS["frequency"])
    honest = model._rows

    def forgetful(output: Tokens, tree: TokenTree) -> list[Law]:
        laws = honest(output, tree)
        for node in range(len(tree)):
            above = tuple(tree.token_ids[i] for i in tree.path_to(node))
            row = edited(logits_after(output + above), model.sampling.edits, PROMPT, output)
            laws[node + 1] = as_law(torch.tensor([row], dtype=torch.float32), model.sampling)[0]
        return laws

    model.rows = cache(forgetful)
    assert emitted_law(model, lambda output: TokenTree.chain((2, 2))) != target_law(model)
