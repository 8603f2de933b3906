"""Summaries as plain text."""
