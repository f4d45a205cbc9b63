"""A whole generation, put together from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.core.errors import ProtocolError
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire.messages import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    PromptLogprobs,
)


@dataclass(slots=True)
class Result:
    """A generation. While it runs it holds what has come so far, and `reason` is None."""

    generation_id: str = ""
    model: str = ""
    seed: int = 0  # the one in force: with it the same request gives the same tokens again
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of token_ids, if asked for
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the prompt's second token on
    reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    speculation: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def tokens_per_round(self) -> float:
        """Delivered tokens per verification step; 1 is what there would be without speculation."""
        rounds = self.speculation.rounds
        return len(self.token_ids) / rounds if rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the verified draft tokens that were accepted and delivered."""
        drafted = self.speculation.draft_tokens
        return self.speculation.accepted_tokens / drafted if drafted else 0.0

    def add(self, event: GenerationEvent) -> None:
        """Take the next event in."""
        if isinstance(event, GenerationStarted):
            self.generation_id, self.model, self.seed = event.generation_id, event.model, event.seed
        elif isinstance(event, PromptLogprobs):
            self.prompt_logprobs += event.entries
        elif isinstance(event, GenerationDelta):
            self.text += event.text
            self.token_ids += event.token_ids
            self.logprobs += event.logprobs
        elif isinstance(event, GenerationFinished):
            self.reason, self.usage, self.speculation = event.reason, event.usage, event.speculation

    def whole(self) -> Result:
        """Itself.

        Raises:
            ProtocolError: the gateway ended the stream before the generation was over.
        """
        if self.reason is None:
            raise ProtocolError("the gateway ended the stream before the generation was over")
        return self
