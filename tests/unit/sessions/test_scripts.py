"""Keys of a session, and where a Cluster puts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from outrider.core.errors import InvalidRequestError
from outrider.core.limits import check_session_id
from outrider.sessions.scripts import keys_of


@given(st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True))
def test_both_keys_of_any_session_share_a_cluster_slot(session_id: str) -> None:
    check_session_id(session_id)
    meta, tokens = keys_of(session_id)
    assert meta != tokens
    assert key_slot(meta.encode()) == key_slot(tokens.encode()) == key_slot(session_id.encode())


@pytest.mark.parametrize(
    "session_id", ["a}b", "{a", "}", "{}", "a{b}c", "a b", "ä", "", "a\n", "a\0", "x" * 129]
)
def test_an_id_that_could_move_the_slot_is_no_session_id(session_id: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_session_id(session_id)
