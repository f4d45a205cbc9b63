"""One session's part of a step, and the times of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry import trace

from outrider.core.errors import OutriderError
from outrider.core.params import TokenLogprobs
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.engine.api import StepItem
from outrider.verifying.fusion.credit import Credit
from outrider.verifying.rounds import Settled
from outrider.verifying.session import Session
from outrider.wire.messages import PromptLogprobs, SessionTokens


@dataclass(slots=True)
class Work:
    """One session's part of a step, and what came of it."""

    session: Session
    item: StepItem
    tree: TokenTree  # draft tokens verified, without the root
    last: bool  # a round: its logits are wanted
    base_len: int  # tokens before the round
    proposals: Mapping[str, Proposal] = field(default_factory=dict)  # as they came, by drafter
    asked: tuple[str, ...] = ()  # drafters that it had asked
    waited_s: float = 0.0  # from asking for proposals to now
    missed: tuple[str, ...] = ()  # drafters that it waited for in vain
    settled: Settled | None = None  # of a round, once run
    credits: Mapping[str, Credit] = field(default_factory=dict)  # of its proposals, once settled, by drafter
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the settled tokens, if they are told
    prompt_logprobs: PromptLogprobs | None = None  # of the part of the prompt that ran, if they are told
    told_again: SessionTokens | None = None  # tokens that were there before, if they are told
    failure: OutriderError | None = None  # why it brought nothing
    span: trace.Span | None = None  # of a round, if tracing is on

    @property
    def is_decoding(self) -> bool:
        """Whether it runs the last token and drafts, and nothing of a prompt."""
        return self.last and len(self.item.tree) == 1 + len(self.tree)

    @property
    def kept_nodes(self) -> list[int]:
        """Nodes of the item's tree whose KV stays."""
        if self.failure is not None:
            return []
        if self.settled is None or not self.tree:
            return list(range(len(self.item.tree)))
        return [0, *(node + 1 for node in self.settled.nodes)]


@dataclass(slots=True)
class StepTimes:
    """When the parts of a step were over, `perf_counter` seconds."""

    start: float
    forward: float = 0.0
    sample: float = 0.0
    editing_s: float = 0.0  # what of the time between forward and sample went into edits
