"""References and ports, one architecture a file."""
