"""Writing records for another program: one format, one file, one function."""
