"""Who is alive, and where.

- `registry` the protocol, and a fixed list
"""

from outrider.discovery.registry import Instance, Registry, Role, StaticRegistry

__all__ = ["Instance", "Registry", "Role", "StaticRegistry"]
