"""Describes, measures and saves tensors."""
