"""Shows records to people: one package per kind of view, independent of each other."""
