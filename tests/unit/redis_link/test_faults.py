"""Outages in words."""

from __future__ import annotations

import pytest
from redis import exceptions
from redis._parsers.base import BaseParser

from outrider.redis_link.faults import outage


def raised(text: str) -> Exception:
    """What redis-py makes of a server's refusal."""
    error = BaseParser.parse_error(text)
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("BUSY Redis is busy running a script.", "is busy with a script"),
        ("CLUSTERDOWN Hash slot not served", "is a Cluster that is down"),
        ("LOADING Redis is loading the dataset in memory", "still loads its data"),
        ("MASTERDOWN Link with MASTER is down", "has lost its master"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "cannot save to its disk"),
        ("MOVED 866 10.0.0.1:6379", "must begin with redis+cluster://"),
        ("NOAUTH Authentication required.", "wants a user and a password"),
        ("ERR Protocol error: unauthenticated multibulk length", "wants a user and a password"),
        ("NOPERM this user has no permissions", "does not permit this user"),
        ("NOREPLICAS Not enough good replicas to write.", "has too few replicas"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "is full"),
        ("READONLY You can't write against a read only replica.", "is a read-only replica"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "moves slots"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "refuses the user or the password"),
    ],
)
def test_a_refusal_that_holds_for_all_calls_is_an_outage(reply: str, words: str) -> None:
    text = outage(raised(reply), timeout_s=1.0)
    assert text is not None and words in text
    code = "NOAUTH" if "unauthenticated" in reply else reply.split(" ")[0]
    assert text.endswith(f"({code})")


@pytest.mark.parametrize(
    "error", [raised("WRONGTYPE Operation against a key"), raised("ERR syntax error"), ValueError()]
)
def test_what_concerns_one_call_only_is_none(error: Exception) -> None:
    assert outage(error, timeout_s=1.0) is None


@pytest.mark.parametrize("error", [TimeoutError(), TimeoutError(), exceptions.TimeoutError("x")])
def test_no_answer_is_an_outage_with_its_bound(error: Exception) -> None:
    assert outage(error, timeout_s=0.5) == "did not answer within 0.5 s: it is slow, frozen or cut off"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("refused."),
        OSError("refused"),
        exceptions.RedisClusterException("refused"),
        exceptions.SlotNotCoveredError("refused"),
    ],
)
def test_a_link_that_cannot_be_made_is_an_outage(error: Exception) -> None:
    assert outage(error, timeout_s=1.0) == "is away: refused"
