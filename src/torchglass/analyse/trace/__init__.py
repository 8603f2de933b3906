"""What can be read off the record of a pass."""
