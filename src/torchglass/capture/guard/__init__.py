"""Finding the op that produced the first NaN or Inf, on the way forward and on the way back."""
