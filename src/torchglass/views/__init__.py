"""Shows records to people: a package per place, independent of each other."""
