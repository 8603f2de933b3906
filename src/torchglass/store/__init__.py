"""Stores what was captured: in an SQLite file, or in memory."""
