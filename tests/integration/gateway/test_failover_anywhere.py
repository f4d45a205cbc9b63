"""Streams break at random points, again and again: the client sees the undisturbed generation."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.errors import SessionMovedError, UnavailableError
from tests.integration.gateway.conftest import ids_of, say
from tests.integration.gateway.failing import several
from tests.integration.gateway.scripted_verifier import Break

TEXT = "the quick brown fox jumps over the lazy dog äöü 漢字 "
IDS = ids_of(TEXT)

BREAKS = st.lists(
    st.builds(
        Break,
        st.integers(-1, 6),
        st.sampled_from([UnavailableError("lost"), SessionMovedError("drained")]),
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def setup(runner, model_folder, make_verifier):
    """A gateway over three verifiers, in a loop that all examples share."""
    context = several(model_folder, [make_verifier(TEXT) for _ in range(3)])
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    breaks=BREAKS,
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    retells=st.booleans(),
    stop=st.sampled_from(["", "fox", "jumps over", "ü 漢", "nowhere"]),
    max_tokens=st.integers(1, len(IDS)),
    logprobs=st.booleans(),
    forgets=st.booleans(),
)
def test_the_client_sees_what_it_would_have_seen(
    runner, setup, breaks, sizes, retells, stop, max_tokens, logprobs, forgets
):
    asked = {
        "stop": {"max_tokens": max_tokens, "stop": [stop] if stop else []},
        "logprobs": {"top": 1, "prompt_top": 1} if logprobs else {},
    }
    streams = 0

    def script(request):
        nonlocal streams
        streams += 1
        return say(TEXT, sizes[streams % len(sizes)])  # another grouping with every stream

    for verifier in setup.verifiers:
        verifier.script, verifier.breaks, verifier.retells = script, [], retells
        verifier.store = {} if forgets else setup.verifiers[0].store
    undisturbed = runner.run(setup.generate(**asked))
    plan = list(breaks)
    for verifier in setup.verifiers:
        verifier.breaks = plan
    assert runner.run(setup.generate(**asked)).view == undisturbed.view
