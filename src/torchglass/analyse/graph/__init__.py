"""A pass folded into a graph that can be drawn."""
