"""Observes live models: the only package, besides whatif, that imports torch."""
