"""Lua scripts that lie in a package's folder `lua`, and how they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis import exceptions

Argument = str | bytes | int


class Script:
    """One Lua script."""

    def __init__(self, package: str, name: str) -> None:
        self.text = files(package).joinpath("lua", f"{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    async def call(self, client: Any, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run it by its hash, or whole where the server does not know it. Raises what redis-py raises."""
        try:
            return await client.evalsha(self.sha, len(keys), *keys, *arguments)
        except exceptions.NoScriptError:  # the server was restarted or flushed
            return await client.eval(self.text, len(keys), *keys, *arguments)
