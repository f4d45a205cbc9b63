"""The target writes conversations, many at once, and its hidden states are kept.

What a conversation holds depends on the seed and on its number only: what is drawn follows from them, texts
are quoted from shards that were complete when its shard began, and the engine's logits do not depend on the
batch. So a run that was broken off goes on to the same shards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

from outrider.core.errors import OverloadedError
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.training.data.chat import ChatFormat
from outrider.training.data.conversation import Conversation
from outrider.training.data.folder import DataFolder
from outrider.training.data.inventing import Plan, Prompt, plan, plan_prompt
from outrider.training.data.shards import Sample

BEHIND = 2
"""A shard begins once all but the one before it are complete; it quotes none of the latter."""


@dataclass(frozen=True, slots=True)
class DataSettings:
    """All that decides what is written, but for the target."""

    seed: int = 1
    features: tuple[str, ...] = ()
    shard_size: int = 64  # conversations begun for a shard; those that loop are left out
    answer_tokens: int = 256
    context: int = 1280  # longest conversation
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.60), (0.7, 0.28), (1.0, 0.12))  # value, share

    def about(self, model: str) -> dict[str, object]:
        """As JSON values, for the folder."""
        return asdict(self) | {
            "model": model,
            "features": list(self.features),
            "temperatures": [list(pair) for pair in self.temperatures],
        }


@dataclass(slots=True, eq=False)
class _Live:
    """A conversation that is being written."""

    number: int
    conversation: Conversation
    sequence: SequenceHandle
    kv_len: int = 0


@dataclass(slots=True)
class _OpenShard:
    """What is known of a shard that is not complete."""

    plans: list[Plan]
    begun: int = 0
    finished: dict[int, Sample | None] = field(default_factory=dict)  # None: left out


class Generator:
    """Writes shards until told to stop."""

    def __init__(
        self,
        engine: EngineApi,
        chat: ChatFormat,
        folder: DataFolder,
        settings: DataSettings,
        *,
        batch: int,
        prompts: Sequence[Prompt] = (),
    ) -> None:
        """Args:
        engine: the target.
        chat: its chat format.
        folder: takes the shards.
        settings: what is written.
        batch: conversations that are written at once.
        prompts: are answered, each once, instead of what the target makes up.
        """
        self._engine = engine
        self._chat = chat
        self._folder = folder
        self._settings = settings
        self._batch = batch
        self._prompts = prompts
        self._open: dict[int, _OpenShard] = {}
        self._live: list[_Live] = []
        engine.keep_features(settings.features)

    def run(self, response_tokens: int, report: Callable[[int], None]) -> None:
        """Write until so many tokens of answers are there, or all prompts are answered.

        Args:
            response_tokens: those of earlier runs count.
            report: is told the number of tokens that are there, after each shard.

        Raises:
            OverloadedError: the engine's pool cannot hold a single conversation.
        """
        report(self._folder.response_tokens)
        while self._folder.response_tokens < response_tokens:
            self._fill()
            if not self._live:
                break
            for live in self._step():
                self._finish(live)
            while self._complete():
                report(self._folder.response_tokens)
        self.close()

    def close(self) -> None:
        """Give back what unfinished conversations hold."""
        for live in self._live:
            self._engine.release(live.sequence)
        self._live.clear()

    def _fill(self) -> None:
        """Begin conversations while there is room."""
        while len(self._live) < self._batch:
            number = self._next()
            if number is None:
                return
            shard, index = divmod(number, self._settings.shard_size)
            own = self._open[shard]
            conversation = Conversation(
                own.plans[index],
                self._chat,
                answer_tokens=self._settings.answer_tokens,
                context=min(self._settings.context, self._engine.info.context_length - 1),
            )
            if conversation.room < 1:
                own.begun += 1
                own.finished[index] = None  # a prompt that leaves no room for an answer
                continue
            sequence = self._engine.open(conversation.token_ids, reuse=0)
            length = len(conversation.token_ids) + conversation.room
            if not self._engine.reserve(sequence, length):
                self._engine.release(sequence)
                if not self._live:
                    raise OverloadedError(f"a conversation of {length} tokens does not fit the pool")
                return
            own.begun += 1
            self._live.append(_Live(number, conversation, sequence))

    def _next(self) -> int | None:
        """The number of the conversation to begin; None: none may begin now."""
        for shard in range(len(self._folder), len(self._folder) + BEHIND):
            if shard not in self._open:
                self._open[shard] = _OpenShard(self._plans(shard))
            own = self._open[shard]
            if own.begun < len(own.plans):
                return shard * self._settings.shard_size + own.begun
        return None

    def _plans(self, shard: int) -> list[Plan]:
        size = self._settings.shard_size
        temperatures = self._settings.temperatures
        texts = self._folder.texts_before(shard - BEHIND + 1)
        numbers = range(shard * size, (shard + 1) * size)
        sources = {number: random.Random(f"{self._settings.seed}/{number}") for number in numbers}
        if self._prompts:
            asked = self._prompts[shard * size : (shard + 1) * size]
            return [
                plan_prompt(sources[number], self._chat, prompt, temperatures)
                for number, prompt in zip(numbers, asked, strict=False)
            ]
        return [plan(sources[number], self._chat, texts, temperatures) for number in numbers]

    def _step(self) -> list[_Live]:
        """Run what is pending and draw a token for each conversation.

        Returns:
            Those that are over.
        """
        trees = [TokenTree.chain(live.conversation.pending) for live in self._live]
        items = [StepItem(live.sequence, tree, "last") for live, tree in zip(self._live, trees, strict=True)]
        logits = self._engine.step(items).logits
        rows = []
        for live, tree in zip(self._live, trees, strict=True):
            self._engine.commit(live.sequence, range(len(tree)))
            rows.append((live.conversation.params, live.sequence.kv_len))
        picks = coupled_picks(logits, rows).tolist()
        over = [live for live, pick in zip(self._live, picks, strict=True) if live.conversation.take(pick)]
        self._live = [live for live in self._live if live not in over]
        return over

    def _finish(self, live: _Live) -> None:
        shard, index = divmod(live.number, self._settings.shard_size)
        usable = live.conversation.usable or bool(self._prompts)
        self._open[shard].finished[index] = self._sample(live) if usable else None
        self._engine.release(live.sequence)

    def _sample(self, live: _Live) -> Sample:
        """What has run: all but the last token."""
        length = live.sequence.kv_len
        conversation = live.conversation
        return Sample(
            torch.tensor(conversation.token_ids[:length]),
            torch.tensor(conversation.response[:length]),
            {
                name: self._engine.features_of(live.sequence, name, 0, length)
                for name in self._settings.features
            },
            conversation.plan.category,
            conversation.plan.temperature,
            conversation.plan.seed,
        )

    def _complete(self) -> bool:
        """Write the first shard that is not written, if all of it is there."""
        number = len(self._folder)
        own = self._open.get(number)
        if own is None or not own.plans or len(own.finished) < len(own.plans):
            return False
        samples = [sample for _, sample in sorted(own.finished.items()) if sample is not None]
        self._folder.write(samples)
        del self._open[number]
        return True
