class Block:
    """A class whose code the page shows."""

    def forward(self, x: float) -> float:
        return x
