"""Finds the op that produced the first NaN or Inf, in forward or backward."""
