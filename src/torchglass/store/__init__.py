"""Keeping what was captured: a SQLite file, or memory."""
