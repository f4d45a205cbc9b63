"""Drafting without a model: what followed the same tokens before."""
