"""The networks that learn to draft."""
