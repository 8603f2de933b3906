"""The page: a model and its training in a browser, served live or saved as one file."""
