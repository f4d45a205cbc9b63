"""What redis-py raises, in words that tell an operator what to do."""

from __future__ import annotations

import re

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError

_SILENT_SENTINEL = re.compile(r"\)>\)> - ")  # redis-py's text has one for each
_REFUSALS = {
    "BUSY": "is busy with a script that does not end: see SCRIPT KILL",
    "CLUSTERDOWN": "is a Cluster that is down: some slots have no master at present",
    "LOADING": "was started a moment ago and still loads its data",
    "MASTERDOWN": "is a replica that has lost its master",
    "MISCONF": "cannot save to its disk and takes no writes: see its log",
    "MOVED": "is a Cluster: its URL must begin with redis+cluster://",
    "NOAUTH": "wants a user and a password: put them into the URL, or the password into its password_file",
    "NOPERM": "does not permit this user all it must: +@read +@write +@scripting +@connection ~outrider:*",
    "NOREPLICAS": "has too few replicas in good order: see min-replicas-to-write",
    "OOM": "is full: raise its maxmemory, or keep what is in it for less time",
    "READONLY": "is a read-only replica: the URL must name the master, or its sentinels",
    "TRYAGAIN": "moves slots at present",
    "WRONGPASS": "refuses the user or the password in the URL, or in its password_file",
}


def outage(error: BaseException, *, timeout_s: float) -> str | None:
    """Why no call can succeed at present: what follows the server's address in a sentence.

    Returns None if only this call was refused, or if `error` comes neither from the server nor the link.
    """
    code = getattr(error, "status_code", None) or str(error).split(" ", 1)[0]
    if "unauthenticated" in str(error):  # so a long command is refused to one who has not logged in
        code = "NOAUTH"
    if isinstance(error, exceptions.RedisError) and code in _REFUSALS:
        return f"{_REFUSALS[code]} ({code})"
    if isinstance(error, exceptions.ResponseError):
        return None
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return f"did not answer within {timeout_s:g} s: it is slow, frozen or cut off"
    if isinstance(error, MasterNotFoundError):
        silent = len(_SILENT_SENTINEL.findall(str(error)))
        others = f"; sentinels that cannot be asked: {silent}" if silent else ""
        return f"is away: no sentinel that answers knows a master that is up{others}"
    if isinstance(error, (exceptions.RedisError, exceptions.RedisClusterException, OSError)):
        return f"is away: {str(error).rstrip('. ')}"
    return None
