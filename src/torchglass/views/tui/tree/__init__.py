"""The tree of modules: its rows, its columns, its search, and the widget that draws them."""
