"""Watching a live model: the only package, besides whatif, that imports torch."""
