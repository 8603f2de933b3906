"""The command line, called without a process of its own: `main(["summary", "net.py:Net"])`."""

from torchglass.cli import main

__all__ = ["main"]
