"""How much each caller may use of this gateway."""

from outrider.gateway.limits.limiter import Lease, Limiter

__all__ = ["Lease", "Limiter"]
