"""Server-sent events as a client reads them."""

from __future__ import annotations


def events_in(text: str) -> list[tuple[str, str]]:
    """Id (empty: none) and data of each whole event."""
    *whole, rest = text.split("\n\n")
    assert rest == "", "the stream broke within an event"
    events = []
    for lines in whole:
        *ids, data = lines.split("\n")
        assert data.startswith("data: ") and len(ids) <= 1 and all(one.startswith("id: ") for one in ids)
        events.append(("".join(ids).removeprefix("id: "), data.removeprefix("data: ")))
    return events
