"""One line of text per record (a traceback has its own), on stderr."""

from __future__ import annotations

import copy
import logging
import sys
import time

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"


class _Formatter(logging.Formatter):
    """UTC times; names without the package; tracebacks of mere warnings only at level `debug`."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(FORMAT, "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)  # other handlers get it too
        record.name = record.name.removeprefix("outrider.")
        if record.exc_info and not self._tracebacks and record.levelno < logging.ERROR:
            record.exc_info = None
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """What peers say may be part of it: it must not look like other lines, nor move the cursor."""
        return "".join(map(_printed, super().formatMessage(record)))


def _printed(sign: str) -> str:
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")


def set_up(level: str) -> None:
    """Log to stderr from `level` (a name of TelemetryConfig.log_level) on; libraries from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(tracebacks=level == "debug"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("outrider").setLevel(level.upper())
