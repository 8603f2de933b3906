"""A training watched from inside: what flows through its modules, their weights, its updates."""
