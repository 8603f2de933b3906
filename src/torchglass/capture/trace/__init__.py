"""Everything that one pass does: ops, calls, values, and the proof by replay."""
