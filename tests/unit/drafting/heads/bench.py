"""A tiny EAGLE head behind a scheduler that is driven by hand, and what it should propose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from outrider.config.schema import DrafterConfig
from outrider.core.models import ModelInfo
from outrider.core.params import SamplingParams
from outrider.core.ranking import ranked_picks
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.drafting.heads.building import build_eagle
from outrider.drafting.heads.target import TargetModel
from outrider.drafting.scheduler import DraftScheduler
from outrider.wire.messages import AdvanceDraft, DraftCommand, FeatureBlock, OpenDraft, Stale
from tests.eagle_reference import ReferenceHead
from tests.tiny_eagle import Kind, tiny_config, tiny_state, tiny_weights

HIDDEN, VOCAB, COLUMNS, LAYERS = 64, 512, 300, 8
GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams(temperature=0.9, seed=7)


Edit = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


class _Target(TargetModel):
    """Sizes and random tensors instead of a folder."""

    def embedding(self) -> torch.Tensor:
        return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(11)) * 0.15

    def output_head(self) -> torch.Tensor:
        return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(12)) * 0.15


TARGET = _Target(Path("target"), ModelInfo("target", "f" * 64, VOCAB, 2048, "", HIDDEN, LAYERS), frozenset())


@dataclass
class Text:
    """A session's tokens, and the features that the target would have for them."""

    name: str
    kind: Kind
    length: int
    seed: int = 0
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(100 + self.seed)
        self.tokens = torch.randint(0, VOCAB, (self.length,), generator=generator).tolist()
        width = HIDDEN * (3 if self.kind == "eagle3" else 1)
        # bf16 is what travels.
        self.states = torch.randn(2048, width, generator=generator).bfloat16()

    def blocks(self, start: int, stop: int) -> tuple[FeatureBlock, ...]:
        """Features of these positions."""
        names = ("hidden_2", "hidden_4", "hidden_5") if self.kind == "eagle3" else ("last_hidden",)
        parts = torch.split(self.states[start:stop], HIDDEN, 1)
        return tuple(
            FeatureBlock(name, start, stop - start, HIDDEN, _bytes(part))
            for name, part in zip(names, parts, strict=True)
        )


def _bytes(rows: torch.Tensor) -> bytes:
    return rows.contiguous().view(torch.int16).numpy().tobytes()


class Bench:
    """A scheduler over a tiny head in float32."""

    def __init__(
        self,
        kind: Kind,
        *,
        tree: str = "chain",
        pool_tokens: int = 4096,
        max_sessions: int = 8,
        variant: dict[str, object] | None = None,
        **fields: object,
    ) -> None:
        """`variant`: what the head's config.json says besides; `fields`: of the drafter's configuration."""
        config = tiny_config(kind, vocab_size=VOCAB, columns=COLUMNS) | (variant or {})
        state = tiny_state(config)
        drafter = DrafterConfig.model_validate(
            {
                "method": "eagle",
                "dtype": "float32",
                "tree": tree,
                "pool_tokens": pool_tokens,
                "tree_nodes": 32,
                "batch_invariance": "off",
                **fields,
            }
        )
        self.method = build_eagle(tiny_weights(config, state), TARGET, drafter, "tiny")
        self.scheduler = DraftScheduler(
            self.method, max_sessions=max_sessions, max_draft_tokens=32, evicted_rest_s=0.0
        )
        self.reference = ReferenceHead(config, state, TARGET.embedding(), TARGET.output_head())

    def put(self, *commands: DraftCommand) -> None:
        for command in commands:
            self.scheduler.apply(1, command, time.perf_counter_ns())

    def run(self) -> dict[str, TokenTree | Stale]:
        """Work until there is none: each session's last answer."""
        seen: dict[str, TokenTree | Stale] = {}
        for _ in range(1000):
            self.scheduler.step()
            for answer in self.scheduler.take().answers:
                event = answer.event
                seen[event.session_id] = event.tree if isinstance(event, Proposal) else event
            if not self.scheduler.has_work:
                return seen
        raise AssertionError("the scheduler does not come to rest")

    def propose(self, *commands: DraftCommand) -> TokenTree:
        """The tree that a session's commands end in."""
        answer = self.run_one(*commands)
        assert isinstance(answer, TokenTree), answer
        return answer

    def run_one(self, *commands: DraftCommand) -> TokenTree | Stale:
        """The last answer to a session's commands."""
        self.put(*commands)
        return self.run()[commands[-1].session_id]

    def check(
        self,
        text: Text,
        tree: TokenTree,
        sampling: SamplingParams,
        *,
        first: int = 0,
        widths: Sequence[int] = (1,) * 8,
        edit: Edit = lambda logits, path: logits,
    ) -> None:
        """Children are the best of what the reference says may follow, with its confidences.

        Args:
            text: that the tree goes on from.
            tree: a proposal.
            sampling: of the session.
            first: position of the first features.
            widths: candidates that were asked for, by depth.
            edit: what becomes of the reference's logits after a path of draft tokens.
        """
        count = len(text.tokens)
        features = text.states[first : count - 1].float()
        children = tree.children()
        for node, own in children.items():
            path = [tree.token_ids[above] for above in tree.path_to(node)]
            logits = edit(self.reference.after(features, text.tokens[first + 1 :], path, first), path)
            ids, confidences = ranked_picks(
                logits[None],
                [(sampling, count + len(path))],
                widths[len(path)],
                self.reference.target_ids(),
            )
            assert list(own) == ids[0, : len(own)].tolist(), (node, path)
            told = torch.tensor([tree.confidences[child] for child in own.values()]).double()
            torch.testing.assert_close(told, confidences[0, : len(own)], atol=1e-4, rtol=1e-3)


def open_(
    text: Text,
    *,
    sampling: SamplingParams = GREEDY,
    length: int = 4,
    nodes: int = 0,
    features: Sequence[FeatureBlock] | None = None,
) -> OpenDraft:
    """All of the text, and (if not said otherwise) all of its features."""
    blocks = text.blocks(0, len(text.tokens) - 1) if features is None else features
    return OpenDraft(
        text.name,
        1,
        tuple(text.tokens),
        sampling,
        length,
        features=tuple(blocks),
        prompt_len=len(text.tokens),
        draft_nodes=nodes,
    )


def advance(
    text: Text, token_ids: Sequence[int], *, length: int = 4, nodes: int = 0, features: bool = True
) -> AdvanceDraft:
    """Commit tokens to the text, with the features that this makes known."""
    base = len(text.tokens)
    text.tokens += token_ids
    blocks = text.blocks(base - 1, len(text.tokens) - 1) if features else ()
    return AdvanceDraft(text.name, 1, base, tuple(token_ids), 0, length, features=blocks, draft_nodes=nodes)
