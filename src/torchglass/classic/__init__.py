"""The names that users of older tools already know, each over one of the verbs."""
