"""Clients of Redis, for whoever needs one: the session store and the registry.

- `connect` makes a client from a URL
"""

from outrider.redis_link.connect import address_of, connect

__all__ = ["address_of", "connect"]
