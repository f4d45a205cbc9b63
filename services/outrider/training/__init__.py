"""Trains drafters from what their target writes."""
