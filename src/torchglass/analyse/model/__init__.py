"""What can be read off the record of a model."""
