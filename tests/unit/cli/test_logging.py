"""Lines of the log."""

from __future__ import annotations

import logging

from outrider.cli.logging import _Formatter


def line(message: str, *, error: BaseException | None = None) -> str:
    record = logging.LogRecord("outrider.x", logging.ERROR, "", 0, "%s", (message,), None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    return _Formatter(tracebacks=True).format(record)


def test_what_a_peer_says_forges_no_line_and_moves_no_cursor() -> None:
    told = line("drafter is down: a\n2026-01-01T00:00:00.000 INFO x: all is well\r\x1b[2K\u2028end")
    assert told.isprintable()
    assert "a\\n2026" in told and "\\r\\x1b[2K\\u2028end" in told


def test_texts_of_all_languages_and_tracebacks_stay_as_they_are() -> None:
    assert line("größer 模型").endswith("größer 模型")
    assert line("it failed", error=ValueError("x")).splitlines()[-1] == "ValueError: x"


def test_other_handlers_get_the_record_as_it_was() -> None:
    record = logging.LogRecord("outrider.x", logging.WARNING, "", 0, "m", (), None)
    record.exc_info = (ValueError, ValueError("x"), None)
    assert "outrider" not in _Formatter(tracebacks=False).format(record)
    assert record.name == "outrider.x" and record.exc_info
