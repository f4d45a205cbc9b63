"""Tensor parallelism: one model shared by several ranks, each with its part of every layer's heads."""
