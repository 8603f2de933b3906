"""Summaries as HTML, for a notebook or as a file of its own."""
