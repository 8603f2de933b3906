"""Other tools that show a training or run it; each file is imported only by those who use it."""
