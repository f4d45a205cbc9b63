"""Outrider: speculative decoding whose drafters and verifier are separate services."""

__version__ = "0.1.0"
