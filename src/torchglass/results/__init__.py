"""What the verbs return: a record, and how to print, export and save it."""
