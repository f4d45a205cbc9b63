"""Outrider under Ray Serve: deployments, the application's builder, autoscaling.

`outrider.rayserve:build` is the `import_path` of the application in a Serve configuration file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.rayserve.app import build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    """`build` is imported when it is asked for: arguments and policies need no torch."""
    if name == "build":
        from outrider.rayserve.app import build

        return build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
