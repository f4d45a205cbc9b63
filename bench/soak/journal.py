"""What happened, as JSON lines: faults, violations, samples."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

SHOWN = 20
"""Violations that are told in words at the end."""


@dataclass
class Fault:
    """One thing that was broken, and mended."""

    kind: str
    target: str
    began: float  # monotonic
    mended: float = 0.0


@dataclass
class Journal:
    """Written as it goes, so that what was seen is there even if the run is killed."""

    file: IO[str]
    started: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, path: Path) -> Journal:
        """A new journal."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path.open("w", encoding="utf-8"))

    def note(self, what: str, **more: Any) -> None:
        """One line, with seconds since the start."""
        line = {"t": round(time.monotonic() - self.started, 3), "what": what, **more}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def violation(self, text: str) -> None:
        """A promise was broken."""
        self.violations.append(text)
        self.note("violation", text=text)

    def broke(self, kind: str, target: str) -> Fault:
        """A fault begins."""
        fault = Fault(kind, target, time.monotonic())
        self.faults.append(fault)
        self.note("fault", kind=kind, target=target)
        return fault

    def mended(self, fault: Fault) -> None:
        """All is whole again."""
        fault.mended = time.monotonic()
        self.note("mended", kind=fault.kind, target=fault.target)

    def close(self) -> None:
        """No more."""
        self.file.close()
