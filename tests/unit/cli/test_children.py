"""What is said of a service that has ended."""

from __future__ import annotations

from signal import SIGKILL

from outrider.cli.children import end_of


def test_a_service_that_stopped_when_it_was_told_to_has_not_died() -> None:
    assert end_of(0) == "has stopped"
    assert end_of(1) == "died: exit status 1"
    assert end_of(-SIGKILL) == "died: SIGKILL"
