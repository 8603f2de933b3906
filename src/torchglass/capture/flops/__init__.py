"""What a model computes, counted kernel by kernel as it runs."""
