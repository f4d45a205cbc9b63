"""Streams under random faults: every one must end with exactly the tokens of an undisturbed run."""
