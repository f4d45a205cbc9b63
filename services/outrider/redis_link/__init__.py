"""Clients of Redis, for whoever needs one: the session store and the registry.

- `connect` makes a client from a URL
"""

from outrider.redis_link.connect import Client, address_of, connect

__all__ = ["Client", "address_of", "connect"]
