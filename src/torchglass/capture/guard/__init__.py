"""Finding the op that made the first NaN or Inf, on the way forward and on the way back."""
