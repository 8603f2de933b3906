"""Which memory a step of a model takes, who takes it, who holds it, and until when."""
