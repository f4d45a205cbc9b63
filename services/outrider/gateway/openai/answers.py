"""The choices of one request as they grow, and what they add up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from outrider.core.params import TokenLogprobs
from outrider.core.sessions import DrafterStats, SpeculationStats, Usage
from outrider.gateway.playing import Begun, PlayEvent
from outrider.wire.messages import GenerationDelta, GenerationFinished, PromptLogprobs


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    index: int  # as the client sees it
    prompt_index: int
    model: str
    seed: int  # of the request: the first choice's
    prompt: tuple[int, ...]
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the prompt's second token on
    drafted: list[bool] = field(default_factory=list)  # for each token: was it a draft token
    finished: GenerationFinished | None = None
    opened: bool = False  # in a stream: its first event is sent

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words."""
        return self.finished.reason.value if self.finished else ""

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        return self.finished.usage if self.finished else Usage(len(self.prompt), len(self.token_ids))

    @property
    def speculation(self) -> SpeculationStats:
        """Counts so far."""
        return self.finished.speculation if self.finished else SpeculationStats()

    @property
    def mean_logprob(self) -> float:
        """Of the generated tokens; without any, less than all others."""
        if not self.logprobs:
            return -math.inf
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs)

    @property
    def prompt_is_told(self) -> bool:
        """Whether all log-probabilities of the prompt are here; its first token has none."""
        return len(self.prompt_logprobs) >= len(self.prompt) - 1

    def accepted_by_round(self) -> Counter[int]:
        """How many rounds delivered so many draft tokens; the rest of each round is one token more.

        Every round ends with a token that was not drafted, except the last one, which may be cut.
        """
        rounds: Counter[int] = Counter()
        run = 0
        for drafted in self.drafted:
            if drafted:
                run += 1
            else:
                rounds[run] += 1
                run = 0
        if run:
            rounds[run] += 1
        return rounds

    def add(self, delta: GenerationDelta) -> None:
        """New text and tokens."""
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.drafted.extend(index < delta.accepted for index in range(len(delta.token_ids)))


class Answers:
    """All candidates of a request, `candidates` for each prompt."""

    def __init__(self, candidates: int, *, only_echo: bool = False) -> None:
        """`only_echo`: what is generated is dropped."""
        self._candidates = candidates
        self._only_echo = only_echo
        self._by_index: dict[int, Answer] = {}

    def __iter__(self) -> Iterable[Answer]:
        return iter(self.all)

    @property
    def all(self) -> list[Answer]:
        """Those that have begun, in order."""
        return [self._by_index[index] for index in sorted(self._by_index)]

    def take(self, index: int, event: PlayEvent) -> Answer:
        """Note an event of candidate `index`."""
        if isinstance(event, Begun):
            prompt, candidate = divmod(index, self._candidates)
            seed = (event.started.seed - candidate) % 2**64
            self._by_index[index] = Answer(index, prompt, event.started.model, seed, event.prompt)
        answer = self._by_index[index]
        match event:
            case PromptLogprobs():
                answer.prompt_logprobs.extend(event.entries)
            case GenerationDelta() if not self._only_echo:
                answer.add(event)
            case GenerationFinished():
                usage = replace(event.usage, completion_tokens=0) if self._only_echo else event.usage
                answer.finished = replace(event, usage=usage)
        return answer

    def best(self, choices: int) -> list[Answer]:
        """For each prompt the `choices` most probable by token, renumbered."""
        if choices == self._candidates:
            return self.all
        chosen: list[Answer] = []
        answers = self.all
        for start in range(0, len(answers), self._candidates):
            ranked = sorted(
                answers[start : start + self._candidates],
                key=lambda answer: answer.mean_logprob,
                reverse=True,
            )
            chosen += ranked[:choices]
        for index, answer in enumerate(chosen):
            answer.index = index
        return chosen


def total_usage(answers: Sequence[Answer]) -> Usage:
    """Counts of a whole request; a prompt that several answers share counts once."""
    total = Usage()
    seen: set[int] = set()
    for answer in answers:
        total.completion_tokens += answer.usage.completion_tokens
        if answer.prompt_index not in seen:
            seen.add(answer.prompt_index)
            total.prompt_tokens += answer.usage.prompt_tokens
            total.cached_prompt_tokens += answer.usage.cached_prompt_tokens
    return total


def total_speculation(answers: Sequence[Answer]) -> SpeculationStats:
    """Counts of a whole request."""
    total = SpeculationStats()
    by_name: dict[str, DrafterStats] = {}
    for stats in (answer.speculation for answer in answers):
        total.rounds += stats.rounds
        total.drafts += stats.drafts
        total.draft_tokens += stats.draft_tokens
        total.accepted_tokens += stats.accepted_tokens
        total.run_ahead_hits += stats.run_ahead_hits
        total.missed += stats.missed
        total.drafter = stats.drafter or total.drafter
        for one in stats.drafters:
            _add(one, by_name.setdefault(one.name, DrafterStats(one.name)))
    total.drafters = list(by_name.values())
    return total


def _add(stats: DrafterStats, total: DrafterStats) -> None:
    total.asked += stats.asked
    total.proposals += stats.proposals
    total.missed += stats.missed
    total.draft_tokens += stats.draft_tokens
    total.accepted_tokens += stats.accepted_tokens
