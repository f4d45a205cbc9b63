"""What a foreign draft model holds of one session."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.drafting.foreign.context import DraftContext
from outrider.drafting.foreign.picking import Pick
from outrider.drafting.foreign.renaming import Renamed, rename
from outrider.drafting.foreign.token_texts import TokenTexts
from outrider.drafting.session import DraftSession
from outrider.engine.api import SequenceHandle


@dataclass(slots=True, eq=False)
class ForeignState:
    """A session's text in draft tokens, and the draft past it."""

    context: DraftContext
    by_text: bool = True  # else by shared ids
    sequence: SequenceHandle | None = None  # its KV holds a prefix of `context.ids` and `ahead`
    ahead: list[Pick] = field(default_factory=list)
    ended: bool = False  # nothing can follow `ahead`
    renamed: Renamed = field(default_factory=Renamed)  # what `ahead` is to the target

    def __len__(self) -> int:
        """Draft tokens, committed and drafted."""
        return len(self.context.ids) + len(self.ahead)

    @property
    def missing(self) -> int:
        """Draft tokens without KV."""
        return len(self) - (self.sequence.kv_len if self.sequence else 0)

    def window(self, start: int, stop: int) -> list[int]:
        """Draft tokens `start` to `stop`."""
        committed = len(self.context.ids)
        drafted = self.ahead[max(0, start - committed) : max(0, stop - committed)]
        return self.context.ids[start:stop] + [pick.token_id for pick in drafted]

    def take(self, session: DraftSession, most: int, *, by_text: bool) -> int:
        """Read up to `most` more committed tokens of the session; what was drafted otherwise goes.

        Returns:
            How many draft tokens, from the start, are what they were.
        """
        fresh = session.tokens[self.context.taken : self.context.taken + most]
        before = len(self.context.ids)
        same = self.context.take(fresh)
        added = self.context.ids[before:]
        drafted = [pick.token_id for pick in self.ahead[: len(added)]]
        by_text = by_text or bool(self.context.held)  # half a character has no token
        # By shared ids a draft token is a target token; its noise was that of its place.
        fits = by_text or [pick.target_id for pick in self.ahead[: len(fresh)]] == fresh
        if by_text == self.by_text and same == before and drafted == added and fits:
            same = len(self)
            del self.ahead[: len(added)]
        else:
            agreed = 0
            while agreed < min(len(added), len(drafted)) and added[agreed] == drafted[agreed]:
                agreed += 1
            same = before + agreed if same == before else same
            self.ahead.clear()
        self.by_text = by_text
        self.ended = False
        return same

    def add(self, pick: Pick, draft: TokenTexts) -> None:
        """Draft on by a token, unless it has no text."""
        if self.by_text and not draft.bytes_of(pick.token_id):
            self.ended = True
        else:
            self.ahead.append(pick)

    def rename(self, session: DraftSession, target: TokenTexts, draft: TokenTexts) -> None:
        """Find out what the draft is to the target."""
        confidences = [pick.confidence for pick in self.ahead]
        if self.by_text:
            texts = [draft.bytes_of(pick.token_id) for pick in self.ahead]
            begun = b"".join(texts)[: len(self.context.held)]
            self.ended = self.ended or not self.context.held.startswith(begun)  # another character
            self.renamed = rename(
                target, session.tokens, texts, confidences, held=self.context.held, ended=self.ended
            )
        else:
            ids = tuple(pick.target_id for pick in self.ahead)
            self.renamed = Renamed(ids, tuple(confidences))
