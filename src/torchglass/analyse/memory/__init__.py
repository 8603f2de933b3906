"""Where the memory of a step is: who made it, who keeps it, who holds the peak."""
