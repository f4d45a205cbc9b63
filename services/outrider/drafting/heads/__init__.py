"""Heads on the hidden states of the target: Medusa, EAGLE, EAGLE-3."""
