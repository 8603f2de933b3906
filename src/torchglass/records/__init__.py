"""Plain frozen data about a model, a pass and a run: what capture writes and all else reads."""
