"""Where sessions are kept so that any verifier can take one over.

- `store`   the protocol
- `memory`, `redis`  its two implementations, alike in everything the conformance suite can see
- `writer`  writes a verifier's commits behind its back, in order, while the store is there
"""

from outrider.sessions.factory import open_store
from outrider.sessions.store import SessionStore

__all__ = ["SessionStore", "open_store"]
