"""The page inside a notebook: live as a widget, and as a part of the notebook's file."""
