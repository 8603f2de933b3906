"""Browses the attributes of a live model, without running its code."""
