"""Who calls: API keys, the file that holds them, and the checks in front of both APIs."""

from outrider.gateway.auth.authenticator import Authenticator
from outrider.gateway.auth.entries import KeyEntry, KeyLimits

__all__ = ["Authenticator", "KeyEntry", "KeyLimits"]
