"""Records everything that a pass does: ops, calls and values, and checks it by replay."""
