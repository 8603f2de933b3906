"""What stands before the explorer for a while: help, lists to pick from, a model being read."""
