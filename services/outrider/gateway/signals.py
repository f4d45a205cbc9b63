"""Something that happens again and again, for any number of those who wait for the next time."""

from __future__ import annotations

import asyncio


class Signal:
    """Take `upcoming` first, look at how things stand, then wait for it: nothing is missed in between."""

    def __init__(self) -> None:
        self.upcoming = asyncio.Event()  # set when it happens next

    def notify(self) -> None:
        """It happens: wake all who wait."""
        self.upcoming.set()
        self.upcoming = asyncio.Event()
