"""Numbers as pictures, in colours that a terminal and a page can draw."""
