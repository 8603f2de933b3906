"""What a user points at, by name or by hand, and the inputs that are written next to it."""
