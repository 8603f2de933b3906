"""Tables: one specification of columns, written as text, CSV, JSON and HTML."""
