"""Reading what a live model is made of."""
