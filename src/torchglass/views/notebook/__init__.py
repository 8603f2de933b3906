"""The page inside a notebook: live as a widget, and saved in the notebook's file."""
