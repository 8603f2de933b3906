"""Reading a model from a file, without its code."""
