"""Pure functions from records to reports."""
