"""How much arithmetic ops do, by their shapes, and what of it each module does."""
