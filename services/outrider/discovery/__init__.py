"""Who is alive, and where.

- `registry`   the protocol, and a fixed list
- `lease`      who looks for others, in Redis
- `announcing` who enters itself there
- `presence`   for as long as it serves
- `ledger`     the key in Redis, and its scripts
- `factory`    what the configuration asks for
"""

from outrider.discovery.announcing import (
    LeaseAnnouncer,
    NullAnnouncer,
    advertised,
    advertised_page,
    is_unspecified,
)
from outrider.discovery.factory import open_announcer, open_registry
from outrider.discovery.lease import LeaseRegistry
from outrider.discovery.presence import announced
from outrider.discovery.registry import Announcer, Instance, Load, Registry, Role, StaticRegistry

__all__ = [
    "Announcer",
    "Instance",
    "LeaseAnnouncer",
    "LeaseRegistry",
    "Load",
    "NullAnnouncer",
    "Registry",
    "Role",
    "StaticRegistry",
    "advertised",
    "advertised_page",
    "announced",
    "is_unspecified",
    "open_announcer",
    "open_registry",
]
