"""Conversations that the target writes, and its hidden states while it does."""
