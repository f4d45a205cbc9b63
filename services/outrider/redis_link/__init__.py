"""Clients of Redis, for whoever needs one: the session store and the registry.

- `connect` makes a client from a URL
- `login`   passwords from files
- `script`  Lua scripts and their calls
"""

from outrider.redis_link.connect import Client, address_of, connect
from outrider.redis_link.script import Argument, Script

__all__ = ["Argument", "Client", "Script", "address_of", "connect"]
