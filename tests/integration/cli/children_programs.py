"""Tiny real services for tests of the supervisor: ready at once, dead as told."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from outrider.cli.children import ServiceSpec

_PREAMBLE = """
import json, os, signal, sys
from outrider.cli.service import die_with_supervisor
die_with_supervisor()
def ready():
    line = {"ready": True, "service": "x", "http": "127.0.0.1:1", "grpc": "127.0.0.1:2"}
    print(json.dumps(line), flush=True)
"""

SERVES = """
print("hello from stderr", file=sys.stderr, flush=True)
print("hello from stdout", flush=True)
ready()
signal.pause()
"""
SAYS_GOODBYE = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
ready()
signal.sigwait({signal.SIGTERM})
print("goodbye", flush=True)
"""
IGNORES_SIGTERM = """
signal.signal(signal.SIGTERM, lambda *_: None)
ready()
while True:
    signal.pause()
"""
FAILS = """
print("the reason is here", file=sys.stderr, flush=True)
raise SystemExit(3)
"""
NEVER_READY = """
signal.pause()
"""
DIES_ONCE_READY = """
ready()
"""


def spec(folder: Path, name: str, body: str) -> ServiceSpec:
    """A service that runs `body`."""
    program = folder / f"{name}.py"
    program.write_text(_PREAMBLE + textwrap.dedent(body))
    return ServiceSpec(name, (sys.executable, str(program)), max_pause_s=0.05)
