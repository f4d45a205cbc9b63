"""How good a drafter is on texts that the target wrote, with the drafting method that serves.

By the rule "coupled" the output is what it is without speculation. So of a draft after any token of a text
just the path is accepted that the text itself takes, and rounds can be counted without running the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from rich.table import Table

from outrider.core.errors import InternalError
from outrider.core.params import SamplingParams
from outrider.core.trees import TokenTree
from outrider.drafting.method import DraftingMethod
from outrider.drafting.session import DraftSession, SessionKey
from outrider.training.data.shards import Sample, Shard
from outrider.wire.messages import FeatureBlock

BATCH = 16
"""Texts that are drafted for at once."""
_LAST_STEPS = 100_000
"""A method that has not finished by then never will."""


@dataclass(slots=True)
class Counts:
    """Rounds of one category."""

    category: str
    tokens: int = 0  # that the rounds gave
    rounds: int = 0
    drafted: int = 0  # nodes that were proposed
    accepted: list[int] = field(default_factory=list)  # rounds whose draft was accepted past each depth

    @property
    def tokens_per_round(self) -> float:
        """The target's own token included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    def add(self, tree: TokenTree, accepted: int) -> None:
        """One round."""
        self.tokens += accepted + 1
        self.rounds += 1
        self.drafted += len(tree)
        self.accepted += [0] * (accepted - len(self.accepted))
        for depth in range(accepted):
            self.accepted[depth] += 1


@dataclass(slots=True, eq=False)
class _Text:
    """A text on its way through the rounds."""

    sample: Sample
    token_ids: list[int]
    session: DraftSession
    counts: Counts
    sent: int = 0  # rows of features

    @property
    def done(self) -> bool:
        return len(self.session.tokens) >= len(self.token_ids)


def evaluate_method(
    method: DraftingMethod,
    shards: Sequence[Shard],
    length: int,
    nodes: int,
    limit: int,
    told: Callable[[int], None],
) -> list[Counts]:
    """Draft all along the answers of texts.

    Args:
        method: the drafter.
        shards: texts with the features that the method needs; the sampled ones with their seeds.
        length: depth of drafts.
        nodes: most nodes of a draft; 0: a chain.
        limit: most texts; 0: all.
        told: the number of texts that are done.

    Returns:
        Of each category, and of all of them under "all", last.

    Raises:
        ConfigError: the shards lack a feature.
    """
    every: dict[str, Counts] = {}
    waiting = _samples(shards, sorted(method.features), limit)
    done = 0
    while batch := [sample for _, sample in zip(range(BATCH), waiting, strict=False)]:
        texts = [_open(method, sample, done + number, every) for number, sample in enumerate(batch)]
        while going := [text for text in texts if not text.done]:
            _round(method, going, length, nodes)
        for text in texts:
            method.close(text.session)
        done += len(batch)
        told(done)
    return [*(every[name] for name in sorted(every)), _sum(list(every.values()))]


def write_counts(path: Path, counts: Sequence[Counts]) -> None:
    """One JSON object a line."""
    lines = [
        json.dumps(
            {
                "category": own.category,
                "tokens": own.tokens,
                "rounds": own.rounds,
                "drafted": own.drafted,
                "tokens_per_round": own.tokens_per_round,
                "accepted": own.accepted,
            }
        )
        for own in counts
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table_of(counts: Sequence[Counts]) -> Table:
    """What people read. Under a position: share of the rounds that got there, of those that could have."""
    depth = max((len(own.accepted) for own in counts), default=0)
    table = Table(
        "category", "rounds", "drafted a round", "tokens a round", *(f"at {n + 1}" for n in range(depth))
    )
    for own in counts:
        reached = [own.rounds, *own.accepted, *[0] * (depth - len(own.accepted))]
        shares = [f"{now / before:.2f}" if before else "-" for before, now in pairwise(reached)]
        drafted = own.drafted / own.rounds if own.rounds else 0.0
        table.add_row(own.category, str(own.rounds), f"{drafted:.1f}", f"{own.tokens_per_round:.3f}", *shares)
    return table


def _samples(shards: Sequence[Shard], names: Sequence[str], limit: int) -> Iterator[Sample]:
    places = [(shard, index) for shard in shards for index in range(len(shard))]
    for shard, index in places[: limit or None]:
        yield shard.sample(index, names)


def _open(method: DraftingMethod, sample: Sample, number: int, every: dict[str, Counts]) -> _Text:
    """Begin where the last answer does, after its first token: that comes with the prefill."""
    token_ids: list[int] = sample.token_ids.tolist()
    answered = sample.response.tolist()
    start = len(token_ids) - 1
    while start > 0 and answered[start - 1]:
        start -= 1
    session = DraftSession(
        SessionKey(0, str(number)),
        0,
        SamplingParams(temperature=sample.temperature, seed=sample.seed),
        token_ids[: start + 1],
        prompt_len=start,
    )
    text = _Text(sample, token_ids, session, every.setdefault(sample.category, Counts(sample.category)))
    method.open(session, _features(method, text))
    return text


def _round(method: DraftingMethod, texts: Sequence[_Text], length: int, nodes: int) -> None:
    for text in texts:
        text.session.goal = length
        text.session.nodes = max(length, nodes)
    _finish(method, [text.session for text in texts])
    for text in texts:
        tree = method.proposal(text.session, length, max(length, nodes))
        text.session.sent = len(tree)
        at = len(text.session.tokens)
        accepted = _agreed(tree, text.token_ids[at:])
        text.counts.add(tree, min(accepted, len(text.token_ids) - at - 1))
        same = text.session.commit(text.token_ids[at : at + accepted + 1])
        if not text.done:
            method.advance(text.session, same, _features(method, text))


def _finish(method: DraftingMethod, sessions: Sequence[DraftSession]) -> None:
    for _ in range(_LAST_STEPS):
        working = [session for session in sessions if not method.finished(session)]
        if not working:
            return
        report = method.step(working)
        if report.starved and not report.progressed:
            raise InternalError("the drafter's pool does not hold the texts: raise pool_tokens")
    raise InternalError(f"{method.name} does not finish its drafts")


def _agreed(tree: TokenTree, token_ids: Sequence[int]) -> int:
    """Depth to which the tree holds the text."""
    children = tree.children()
    node, depth = -1, 0
    for token_id in token_ids:
        if token_id not in children.get(node, {}):
            break
        node = children[node][token_id]
        depth += 1
    return depth


def _sum(every: Sequence[Counts]) -> Counts:
    depth = max((len(own.accepted) for own in every), default=0)
    padded = [[*own.accepted, *[0] * (depth - len(own.accepted))] for own in every]
    return Counts(
        "all",
        sum(own.tokens for own in every),
        sum(own.rounds for own in every),
        sum(own.drafted for own in every),
        [sum(column) for column in zip(*padded, strict=True)],
    )


def _features(method: DraftingMethod, text: _Text) -> list[FeatureBlock]:
    """Rows that the target has by now, from where the last ones ended. It has not run the last token."""
    stop = len(text.session.tokens) - 1
    start = stop - 1 if method.last_feature_only else text.sent
    text.sent = stop
    blocks: list[FeatureBlock] = []
    for name, rows in sorted(text.sample.features.items()):
        part = rows[start:stop].to(torch.bfloat16).contiguous()
        data = part.view(torch.int16).numpy().tobytes()
        blocks.append(FeatureBlock(name, start, len(part), part.shape[1], data))
    return blocks
