"""The terminal explorer: a model's tree, and panels that follow its cursor."""
