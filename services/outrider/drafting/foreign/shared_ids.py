"""Tokens that two vocabularies have in common, and what they are called in each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.drafting.foreign.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class SharedIds:
    """Parallel int64 [n], ascending by the target's id."""

    target: torch.Tensor
    draft: torch.Tensor

    def __len__(self) -> int:
        return len(self.target)


def shared_ids(target: TokenTexts, draft: TokenTexts, *, target_size: int, draft_size: int) -> SharedIds:
    """Ids that stand for the same bytes, or for the same special token, in both vocabularies.

    A token that is written twice in a vocabulary counts once, under its lowest id that is no byte fallback.

    Args:
        target: the target's tokenizer.
        draft: the draft model's.
        target_size: ids from here on have no logit in the target.
        draft_size: likewise in the draft model.
    """
    theirs = _by_text(draft, draft_size)
    pairs = sorted(
        (token_id, theirs[text]) for text, token_id in _by_text(target, target_size).items() if text in theirs
    )
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return SharedIds(table[:, 0].contiguous(), table[:, 1].contiguous())


def _by_text(texts: TokenTexts, size: int) -> dict[bytes | str, int]:
    found: dict[bytes | str, int] = {}
    ids = [token_id for token_id in texts.ids() if token_id < size]
    for token_id in sorted(ids, key=lambda own: (texts.is_byte_fallback(own), own)):
        text = texts.special.get(token_id) or texts.bytes_of(token_id)
        if text:
            found.setdefault(text, token_id)
    return found
