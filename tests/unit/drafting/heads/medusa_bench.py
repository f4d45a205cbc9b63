"""Tiny Medusa heads behind a scheduler that is driven by hand, and what they should propose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from outrider.config.schema import DrafterConfig
from outrider.core.params import SamplingParams
from outrider.core.ranking import ranked_picks
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.drafting.heads.medusa_building import build_medusa
from outrider.drafting.heads.medusa_weights import MedusaWeights
from outrider.drafting.heads.weights import LinearWeights
from outrider.drafting.scheduler import DraftScheduler
from outrider.wire.messages import AdvanceDraft, DraftCommand, FeatureBlock, OpenDraft, Stale
from tests.tiny_medusa import ReferenceHeads
from tests.unit.drafting.heads.bench import GREEDY, HIDDEN, TARGET, VOCAB

HEADS = 4
DRAFT_IDS = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(9))[:300].sort().values

Edit = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


@dataclass
class Text:
    """A session's tokens, and the hidden states that the target would have for them."""

    name: str
    length: int = 30
    seed: int = 0
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(100 + self.seed)
        self.tokens = torch.randint(0, VOCAB, (self.length,), generator=generator).tolist()
        self.states = torch.randn(256, HIDDEN, generator=generator).bfloat16()  # bf16 is what travels

    def block(self, start: int | None = None, stop: int | None = None) -> FeatureBlock:
        """Features of these positions; of the last one that has any."""
        end = len(self.tokens) - 1 if stop is None else stop
        first = end - 1 if start is None else start
        rows = self.states[first:end]
        return FeatureBlock("last_hidden", first, len(rows), HIDDEN, rows.view(torch.int16).numpy().tobytes())

    def open(
        self,
        sampling: SamplingParams = GREEDY,
        *,
        length: int = HEADS,
        nodes: int = 0,
        features: Sequence[FeatureBlock] | None = None,
    ) -> OpenDraft:
        """All of the text."""
        blocks = (self.block(),) if features is None else tuple(features)
        ids, count = tuple(self.tokens), len(self.tokens)
        return OpenDraft(
            self.name, 1, ids, sampling, length, features=blocks, prompt_len=count, draft_nodes=nodes
        )

    def advance(
        self, token_ids: Sequence[int], *, length: int = HEADS, nodes: int = 0, features: bool = True
    ) -> AdvanceDraft:
        """Commit tokens to the text."""
        base = len(self.tokens)
        self.tokens += token_ids
        blocks = (self.block(),) if features else ()
        return AdvanceDraft(
            self.name, 1, base, tuple(token_ids), 0, length, features=blocks, draft_nodes=nodes
        )


class MedusaBench:
    """A scheduler over tiny heads in float32."""

    def __init__(
        self,
        *,
        tree: str = "chain",
        layers: int = 1,
        own: bool = True,
        reduced: bool = False,
        **fields: object,
    ) -> None:
        """`own`: the heads have output heads; `reduced`: they draft some of the ids only."""
        self.reference = ReferenceHeads.random(HEADS, layers, hidden=HIDDEN, columns=VOCAB)
        if not own:
            for head in self.reference:
                head[-1].weight.data = TARGET.output_head()
        self.ids = DRAFT_IDS if reduced else torch.arange(VOCAB)
        for head in self.reference:
            head[-1].weight.data = head[-1].weight.data[self.ids]
        weights = MedusaWeights(
            HIDDEN,
            VOCAB,
            tuple(
                tuple(LinearWeights(block.linear.weight, block.linear.bias) for block in head[:-1])
                for head in self.reference
            ),
            tuple(head[-1].weight for head in self.reference) if own else (),
            self.ids if reduced else None,
        )
        config = {"method": "medusa", "dtype": "float32", "tree": tree, "tree_nodes": 32}
        drafter = DrafterConfig.model_validate(config | {"batch_invariance": "off"} | fields)
        self.method = build_medusa(weights, TARGET, drafter, "tiny")
        self.scheduler = DraftScheduler(self.method, max_sessions=64, max_draft_tokens=32, evicted_rest_s=0.0)

    def put(self, *commands: DraftCommand) -> None:
        for command in commands:
            self.scheduler.apply(1, command, time.perf_counter_ns())

    def run(self) -> dict[str, TokenTree | Stale]:
        """Work until there is none: each session's last answer."""
        seen: dict[str, TokenTree | Stale] = {}
        for _ in range(100):
            self.scheduler.step()
            for answer in self.scheduler.take().answers:
                event = answer.event
                seen[event.session_id] = event.tree if isinstance(event, Proposal) else event
            if not self.scheduler.has_work:
                return seen
        raise AssertionError("the scheduler does not come to rest")

    def answer(self, *commands: DraftCommand) -> TokenTree | Stale:
        """The last answer to a session's commands."""
        self.put(*commands)
        return self.run()[commands[-1].session_id]

    def propose(self, *commands: DraftCommand) -> TokenTree:
        """The tree that a session's commands end in."""
        answer = self.answer(*commands)
        assert isinstance(answer, TokenTree), answer
        return answer

    def check(
        self,
        text: Text,
        tree: TokenTree,
        sampling: SamplingParams = GREEDY,
        *,
        widths: Sequence[int] = (1,) * HEADS,
        edit: Edit = lambda logits, path: logits,
    ) -> None:
        """Children of a node at depth k are the best that head k says, with its confidences.

        Args:
            text: that the tree goes on from.
            tree: a proposal.
            sampling: of the session.
            widths: candidates that were asked for, by depth.
            edit: what becomes of the reference's logits after a path of draft tokens.
        """
        count = len(text.tokens)
        said = self.reference.say(text.states[count - 2].float())
        for node, own in tree.children().items():
            path = [tree.token_ids[above] for above in tree.path_to(node)]
            depth = len(path)
            logits = edit(said[depth], path)
            ids, confidences = ranked_picks(
                logits[None], [(sampling, count + depth)], widths[depth], self.ids
            )
            assert list(own) == ids[0, : len(own)].tolist(), (node, path)
            told = torch.tensor([tree.confidences[child] for child in own.values()]).double()
            torch.testing.assert_close(told, confidences[0, : len(own)], atol=1e-4, rtol=1e-3)
