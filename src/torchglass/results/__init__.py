"""What the verbs hand back: a record joined to the ways in which it can be seen and saved."""
