"""Asks one verifier again and again how it is, and decides when it counts as gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from outrider.core.errors import ModelMismatchError, OutriderError
from outrider.gateway.verifier_link import VerifierLink
from outrider.wire.messages import VerifierInfo

_LOG = logging.getLogger(__name__)

AWAY_S = 0.2
"""How soon one that is away is asked again, if that is sooner than the configured interval."""
STANDSTILL_S = 0.5
"""Being told so late that the time for an answer is over means that this process stood still."""

Check = Callable[[VerifierInfo, str], None]


class Prober:
    """Keeps the state of one link true."""

    def __init__(self, link: VerifierLink, check: Check, *, probe_s: float, timeout_s: float) -> None:
        """Args:
        link: to the verifier.
        check: raises ModelMismatchError for a verifier (second argument: its address) to refuse.
        probe_s: how often it is asked.
        timeout_s: one that has not answered for so long counts as gone: its streams are broken off.
        """
        self._link = link
        self._check = check
        self._probe_s = probe_s
        self._timeout_s = timeout_s
        self._heard = monotonic()
        self._said = ""

    async def run(self) -> None:
        """Ask until the link is no more wanted: at once where a call found the verifier away."""
        link = self._link
        while not link.over:
            link.changed.clear()
            await self._probe()
            link.asked.notify()
            wait_s = self._probe_s if link.info is not None else min(self._probe_s, AWAY_S)
            try:
                await asyncio.wait_for(link.changed.wait(), wait_s)
            except TimeoutError:
                continue

    async def _probe(self) -> None:
        link, began = self._link, monotonic()
        patience = self._timeout_s
        if link.streams or link.info is not None:
            patience = max(self._heard + self._timeout_s - began, self._probe_s)
        try:
            info = await link.ask(patience)
            if link.info is None or link.info.instance_id != info.instance_id:
                self._check(info, link.address)
        except ModelMismatchError as error:
            self._say(f"verifier {link.address} is refused: {error}")
            link.refuse(error)
        except OutriderError as error:
            self._unanswered(error, began, patience)
        else:
            if link.info is None:
                self._said = ""
                _LOG.info("verifier %s serves %s", link.address, info.model.model_name)
            self._heard = monotonic()
            link.found(info)

    def _unanswered(self, error: OutriderError, began: float, patience: float) -> None:
        now = monotonic()
        if now - began > patience + STANDSTILL_S:
            return
        self._say(f"verifier {self._link.address} is away: {error}")
        if now - self._heard < self._timeout_s:
            self._link.found(None)  # it refused, or the connection broke: streams may go on all the same
        else:
            self._link.sever(f"has not answered for {self._timeout_s:g} s")

    def _say(self, text: str) -> None:
        if text != self._said:  # one that loads for minutes is no news at every probe
            self._said = text
            _LOG.warning("%s", text)
