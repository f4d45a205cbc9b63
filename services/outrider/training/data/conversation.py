"""A conversation while the target writes it, a token at a time."""

from __future__ import annotations

from outrider.core.params import SamplingParams
from outrider.training.data.chat import ChatFormat
from outrider.training.data.inventing import Plan

WINDOW = 48
LEAST_TRIGRAMS = 22
"""A window of 48 tokens with fewer different trigrams is a loop."""
LEAST_MESSAGE = 4
LEAST_ANSWER = 8
MOST_MESSAGE = 160
MESSAGE_TOP_K = 64


class Conversation:
    """Token ids, and which of them the target answered. `pending` are those that still have to run."""

    def __init__(self, plan: Plan, chat: ChatFormat, *, answer_tokens: int, context: int) -> None:
        """`answer_tokens`: longest answer; `context`: longest conversation."""
        self.plan = plan
        self._chat = chat
        self._answer_tokens = answer_tokens
        self._context = context
        self._follow_up = plan.follow_up
        self._asking = plan.free
        self._start = 0  # of the turn that is being written
        self.token_ids: list[int] = []
        self.response: list[bool] = []
        self.pending: list[int] = []
        self._append((*chat.before, *plan.message))
        self._start = len(self.token_ids)
        if not plan.free:
            self._begin_answer()

    @property
    def params(self) -> SamplingParams:
        """How the next token is drawn."""
        if self._asking:
            return SamplingParams(temperature=1.0, top_k=MESSAGE_TOP_K, seed=self.plan.seed)
        return SamplingParams(temperature=self.plan.temperature, seed=self.plan.seed)

    @property
    def _fits(self) -> bool:
        """Whether the user's turn may end here and an answer begin."""
        return len(self.token_ids) + len(self._chat.after) + LEAST_ANSWER < self._context

    @property
    def answer(self) -> list[int]:
        """The last answer, as far as it is written."""
        return self.token_ids[self._start :]

    @property
    def room(self) -> int:
        """The most tokens that may still be appended."""
        rest = self._answer_tokens
        if self._asking:
            rest += MOST_MESSAGE + len(self._chat.after)
        if self._follow_up:
            rest = self._context
        return min(rest, self._context - len(self.token_ids))

    @property
    def usable(self) -> bool:
        """Whether it ends in an answer that is worth learning from."""
        return not self._asking and len(self.answer) >= LEAST_ANSWER and not is_loop(self.answer)

    def take(self, token_id: int) -> bool:
        """Go on with a token that was drawn.

        Returns:
            Whether the conversation is over.
        """
        self.pending.clear()
        return self._take_message(token_id) if self._asking else self._take_answer(token_id)

    def _take_message(self, token_id: int) -> bool:
        written = len(self.token_ids) - self._start
        if token_id in self._chat.ends or written >= MOST_MESSAGE or not self._fits:
            if written < LEAST_MESSAGE or not self._fits:
                return True  # nobody asked anything, or there is no room for an answer
            self._begin_answer()
        else:
            self._append((token_id,))
        return False

    def _take_answer(self, token_id: int) -> bool:
        self._append((token_id,), response=True)
        ended = token_id in self._chat.ends
        full = len(self.answer) >= self._answer_tokens or len(self.token_ids) >= self._context
        if ended and self._follow_up and len(self.token_ids) < self._context // 2 and self.usable:
            self._follow_up = False
            self._asking = True
            self._append(self._chat.between)
            self._start = len(self.token_ids)
            return False
        return ended or full

    def _begin_answer(self) -> None:
        self._append(self._chat.after)
        self._asking = False
        self._start = len(self.token_ids)

    def _append(self, token_ids: tuple[int, ...], *, response: bool = False) -> None:
        self.token_ids += token_ids
        self.response += [response] * len(token_ids)
        self.pending += token_ids


def is_loop(token_ids: list[int]) -> bool:
    """Whether the text repeats itself somewhere: a window with few different trigrams."""
    for first in range(0, len(token_ids) - WINDOW + 1, 16):
        window = token_ids[first : first + WINDOW]
        if len({tuple(window[at : at + 3]) for at in range(WINDOW - 2)}) < LEAST_TRIGRAMS:
            return True
    return False
