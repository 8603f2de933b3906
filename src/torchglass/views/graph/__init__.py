"""Pictures of a trace: SVG, PNG and PDF, drawn through Graphviz."""
