"""The table of bench/drafters.py: answers to rows, rows to Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

OFF = "off"
ALL = "all"
DEPTHS = 8  # of acceptance that the table shows


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer, as it is kept."""

    prompt: str
    category: str
    drafter: str
    temperature: float
    repeat: int
    max_tokens: int
    tokens: int
    seconds: float
    first_s: float
    rounds: int
    drafted: int
    accepted: int
    missed: int
    accepted_by_round: dict[str, int]
    text_hash: str

    @property
    def key(self) -> tuple[str, str, float, int, int]:
        """What it answers."""
        return self.prompt, self.drafter, self.temperature, self.repeat, self.max_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of a drafter on a category."""

    temperature: float
    category: str
    drafter: str
    answers: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    missed: int
    tokens_per_round: float | None
    tokens_per_second: float
    times_off: float | None  # median over prompts and repeats
    compared: int  # answers for which `off` is there
    same: int  # of these, with its tokens
    accepted_at: list[float] = field(default_factory=list)  # depth 1, 2, ...: share of rounds with drafts


def summarize(samples: Sequence[Measured], drafters: Sequence[str]) -> list[Row]:
    """A row for each temperature, category (all last) and drafter."""
    off = {(one.prompt, one.temperature, one.repeat): one for one in samples if one.drafter == OFF}
    categories = [*dict.fromkeys(one.category for one in samples), ALL]
    rows = []
    for temperature in sorted({one.temperature for one in samples}):
        for category in categories:
            for drafter in drafters:
                group = [
                    one
                    for one in samples
                    if (one.temperature, one.drafter) == (temperature, drafter)
                    and category in (one.category, ALL)
                ]
                if group:
                    rows.append(_row(temperature, category, drafter, group, off))
    return rows


def _row(
    temperature: float,
    category: str,
    drafter: str,
    group: Sequence[Measured],
    off: dict[tuple[str, float, int], Measured],
) -> Row:
    pairs = [
        (one, theirs)
        for one in group
        if (theirs := off.get((one.prompt, one.temperature, one.repeat))) is not None
    ]
    ratios = [
        (one.tokens / one.seconds) / (theirs.tokens / theirs.seconds)
        for one, theirs in pairs
        if theirs.tokens and one.seconds and theirs.seconds
    ]
    rounds, tokens = sum(one.rounds for one in group), sum(one.tokens for one in group)
    return Row(
        temperature=temperature,
        category=category,
        drafter=drafter,
        answers=len(group),
        tokens=tokens,
        rounds=rounds,
        drafted=sum(one.drafted for one in group),
        accepted=sum(one.accepted for one in group),
        missed=sum(one.missed for one in group),
        tokens_per_round=round(tokens / rounds, 4) if rounds else None,
        tokens_per_second=round(tokens / sum(one.seconds for one in group), 3),
        times_off=round(median(ratios), 4) if ratios else None,
        compared=len(pairs),
        same=sum(one.text_hash == theirs.text_hash for one, theirs in pairs),
        accepted_at=_by_depth(group),
    )


def _by_depth(group: Sequence[Measured]) -> list[float]:
    counts: dict[int, int] = {}
    for one in group:
        for accepted, rounds in one.accepted_by_round.items():
            counts[int(accepted)] = counts.get(int(accepted), 0) + rounds
    whole = sum(counts.values())
    deepest = max(counts, default=0)
    return [
        round(sum(count for accepted, count in counts.items() if accepted >= depth) / whole, 4)
        for depth in range(1, deepest + 1)
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Two tables for each temperature: drafters by category, and acceptance by depth."""
    parts = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        own = [row for row in rows if row.temperature == temperature]
        drafters = list(dict.fromkeys(row.drafter for row in own))
        parts.append(f"Temperature {temperature:g}: tokens a round, and speed over off (median)\n")
        parts.append("| category | " + " | ".join(drafters) + " |")
        parts.append("|---" * (len(drafters) + 1) + "|")
        for category in dict.fromkeys(row.category for row in own):
            cells = {row.drafter: _cell(row) for row in own if row.category == category}
            name = f"**{category}**" if category == ALL else category
            parts.append(f"| {name} | " + " | ".join(cells.get(one, "-") for one in drafters) + " |")
        parts.append("\nRounds with drafts that accepted at least k draft tokens\n")
        parts.append("| drafter | " + " | ".join(map(str, range(1, DEPTHS + 1))) + " | same as off |")
        parts.append("|---" * (DEPTHS + 2) + "|")
        for row in own:
            if row.category == ALL and row.drafter != OFF:
                shares = [f"{share:.0%}" for share in row.accepted_at[:DEPTHS]]
                shares += ["-"] * (DEPTHS - len(shares))
                parts.append(f"| {row.drafter} | " + " | ".join(shares) + f" | {row.same}/{row.compared} |")
        parts.append("")
    return "\n".join(parts)


def _cell(row: Row) -> str:
    if row.drafter == OFF:
        return f"{row.tokens_per_second:.1f} tok/s"
    rate = "-" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}"
    return rate if row.times_off is None else f"{rate}, {row.times_off:.2f}x"
