"""Records what goes through modules, forward and backward."""
