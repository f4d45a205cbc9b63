"""Instances as the registry keeps them: JSON, read with care, for anybody may have written it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from outrider.core.errors import ConfigError, ProtocolError
from outrider.discovery.registry import Instance, Load, Role, check_address

MAX_BYTES = 4096
"""Size of an entry; what is larger is none of ours."""
_MOST_TOLD = 100
_log = logging.getLogger(__name__)


def field_of(instance: Instance) -> str:
    """The place of an instance: who starts anew at the same address takes it over."""
    return f"{instance.role.value}/{instance.name}/{instance.address}"


def pack(instance: Instance) -> str:
    """An instance as JSON."""
    body: dict[str, Any] = {
        "role": instance.role.value,
        "name": instance.name,
        "address": instance.address,
        "instance_id": instance.instance_id,
        "draining": instance.draining,
        "metrics": instance.metrics,
    }
    if (load := instance.load) is not None:
        body["load"] = {
            "running": load.running,
            "waiting": load.waiting,
            "capacity": load.capacity,
            "kv_usage": round(load.kv_usage, 4),
        }
    return json.dumps(body, separators=(",", ":"))


def unpack(data: bytes) -> Instance:
    """What `pack` made. Keys that are not known are left out.

    Raises:
        ProtocolError: it cannot be read.
    """
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"an entry of {len(data)} bytes")
    try:
        body = json.loads(data)
        return Instance(
            Role(body["role"]),
            check_address(_text(body["address"])),
            _text(body["name"]),
            _text(body["instance_id"]),
            draining=body["draining"] is True,
            load=None if body.get("load") is None else _load(body["load"]),
            metrics=check_address(_text(page)) if (page := body.get("metrics")) else "",
        )
    except (ArithmeticError, LookupError, ValueError, TypeError, RecursionError, ConfigError) as error:
        raise ProtocolError(f"an entry that cannot be read: {error!r}") from error


class EntryReader:
    """Reads entries of one ledger; says once of each that it cannot be read."""

    def __init__(self, address: str) -> None:
        """`address`: of the ledger, for the log."""
        self._address = address
        self._unreadable: set[bytes] = set()

    def read(self, bodies: Iterable[bytes]) -> tuple[Instance, ...]:
        """Those that can be read, in a stable order."""
        found = (self._one(body) for body in bodies)
        return tuple(sorted((one for one in found if one is not None), key=field_of))

    def _one(self, body: bytes) -> Instance | None:
        try:
            return unpack(body)
        except ProtocolError as error:
            if body not in self._unreadable and len(self._unreadable) < _MOST_TOLD:
                self._unreadable.add(body)
                _log.warning("registry %s holds %s", self._address, error)
            return None


def _load(body: dict[str, Any]) -> Load:
    running, waiting, capacity = (int(body[key]) for key in ("running", "waiting", "capacity"))
    if min(running, waiting, capacity) < 0:
        raise ValueError("a negative count")
    return Load(running, waiting, capacity, min(1.0, max(0.0, float(body["kv_usage"]))))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
