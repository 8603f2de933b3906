"""One forward to look at, after which the model is as it was."""
