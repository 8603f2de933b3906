"""Measures what a model costs to run: time, FLOPs and memory."""
