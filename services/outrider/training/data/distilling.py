"""The target writes conversations, many at once, in the project's own engine.

A conversation is a function of seed, number and the texts written before its shard: its tokens are coupled picks
(`core/sampling.py`), and the engine is batch-invariant. So a run that was interrupted goes on to the same shards.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.training.data.frames import Texts
from outrider.training.data.prompts import Opening, Prompts
from outrider.training.data.shards import Conversation

_TEMPERATURES, _WEIGHTS = (0.0, 0.7, 1.0), (60, 28, 12)
_LONGEST_QUESTION = 160
_SHORTEST_ANSWER = 8
_SECOND_TURNS = 0.2
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """How conversations are made."""

    seed: int = 1
    per_shard: int = 128  # conversations begun for a shard; those that loop are dropped
    batch: int = 48  # at the same time
    longest_prompt: int = 820  # tokens
    longest_answer: int = 256
    longest: int = 1280  # tokens of a conversation
    chunk: int = 512  # prompt tokens in one step


@dataclass(slots=True, eq=False)
class _Live:
    """A conversation being written."""

    opening: Opening
    rng: random.Random
    seed: int
    tokens: list[int]
    answer: list[bool]
    temperature: float
    asking: bool  # the target writes the user's message
    start: int  # where the part being written began
    turn: int = 1
    sequence: SequenceHandle | None = None
    over: bool = False

    def add(self, token_ids: Iterable[int], *, answer: bool) -> None:
        for token_id in token_ids:
            self.tokens.append(token_id)
            self.answer.append(answer)


@dataclass(slots=True)
class Distiller:
    """Writes shards of conversations."""

    engine: EngineApi
    texts: Texts
    prompts: Prompts
    features: Sequence[str]
    options: DistilOptions
    progress: Callable[[int], None] = field(default=lambda tokens: None)  # told of answer tokens written

    def shard(self, number: int, written: Sequence[str]) -> list[Conversation]:
        """The conversations of shard `number`, given the answers of all shards before it."""
        waiting = deque(self._begin(number, index, written) for index in range(self.options.per_shard))
        live: list[_Live] = []
        done: dict[int, Conversation] = {}
        order = {id(one): index for index, one in enumerate(waiting)}
        while waiting or live:
            while waiting and len(live) < self.options.batch:
                one = waiting.popleft()
                one.sequence = self.engine.open(one.tokens, reuse=0)
                live.append(one)
            self._step(live)
            for one in [own for own in live if own.over]:
                conversation = self._finished(one)
                if conversation is not None:
                    done[order[id(one)]] = conversation
                live.remove(one)
        return [done[index] for index in sorted(done)]

    def _begin(self, number: int, index: int, written: Sequence[str]) -> _Live:
        seed = (self.options.seed * _SEED_STRIDE + number) * _SEED_STRIDE + index
        rng = random.Random(seed)
        opening = self.prompts.opening(rng, written)
        frame = self.texts.frame
        tokens = [*frame.before_question, *self.texts.encode(opening.text)[: self.options.longest_prompt]]
        (temperature,) = rng.choices(_TEMPERATURES, _WEIGHTS)
        asking = not opening.complete
        if not asking:
            tokens += frame.before_answer
        return _Live(
            opening, rng, seed % 2**63, tokens, [False] * len(tokens), temperature, asking, len(tokens)
        )

    def _step(self, live: Sequence[_Live]) -> None:
        """One packed forward; those that have no prompt left to run get a token."""
        items, drawing, budget = [], [], self.options.chunk
        for one in live:
            assert one.sequence is not None
            missing = len(one.tokens) - one.sequence.kv_len
            count = missing if missing == 1 else min(missing, budget)
            if not count:
                continue
            budget -= count if missing > 1 else 0
            start = one.sequence.kv_len
            last = count == missing
            if not self.engine.reserve(one.sequence, count):
                raise RuntimeError("the pool is too small for the batch")
            chunk = TokenTree.chain(one.tokens[start : start + count])
            items.append(StepItem(one.sequence, chunk, "last" if last else "none"))
            if last:
                drawing.append(one)
        output = self.engine.step(items)
        for item in items:
            self.engine.commit(item.sequence, range(len(item.tree)))
        picks = coupled_picks(output.logits, [(self._sampling(one), len(one.tokens)) for one in drawing])
        for one, token_id in zip(drawing, picks.tolist(), strict=True):
            self._take(one, token_id)

    def _sampling(self, one: _Live) -> SamplingParams:
        if one.asking:
            return SamplingParams(temperature=1.0, top_k=64, seed=one.seed)
        return SamplingParams(temperature=one.temperature, seed=one.seed)

    def _take(self, one: _Live, token_id: int) -> None:
        frame, length = self.texts.frame, len(one.tokens) - one.start
        ends = token_id in self.engine.eos_token_ids
        if one.asking:
            if not ends and token_id != frame.before_answer[0] and length < _LONGEST_QUESTION:
                one.add([token_id], answer=False)
                return
            one.add(frame.before_answer, answer=False)
            one.asking, one.start = False, len(one.tokens)
            return
        one.add([token_id], answer=True)
        self.progress(1)
        if not ends and length + 1 < self.options.longest_answer and len(one.tokens) < self.options.longest:
            return
        if ends and self._goes_on(one):
            del one.tokens[-1], one.answer[-1]  # the frame begins with what ends a turn
            one.add(frame.before_next, answer=False)
            one.asking, one.start, one.turn = True, len(one.tokens), 2
            return
        one.over = True

    def _goes_on(self, one: _Live) -> bool:
        free = one.opening.category == "chat" and one.turn == 1 and 2 * len(one.tokens) < self.options.longest
        return free and not loops(one.tokens[one.start :]) and one.rng.random() < _SECOND_TURNS

    def _finished(self, one: _Live) -> Conversation | None:
        assert one.sequence is not None
        answer = one.tokens[one.start :]
        length = one.sequence.kv_len
        conversation = None
        if len(answer) >= _SHORTEST_ANSWER and not loops(answer):
            rows = [self.engine.features_of(one.sequence, name, 0, length) for name in self.features]
            conversation = Conversation(
                torch.tensor(one.tokens[:length]),
                torch.tensor(one.answer[:length]),
                torch.stack(rows, 1),
                one.temperature,
                one.opening.category,
            )
        self.engine.release(one.sequence)
        return conversation


def loops(token_ids: Sequence[int]) -> bool:
    """Whether some window of 48 tokens has fewer than 22 different trigrams."""
    return any(
        len({tuple(token_ids[at : at + 3]) for at in range(start, start + 46)}) < 22
        for start in range(0, len(token_ids) - 47, 16)
    )
