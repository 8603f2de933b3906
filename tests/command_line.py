"""The command line, called without a process of its own: `main(["summary", "net.py:Net"])`."""

from torchglass.cli import main
from torchglass.cli.options import app

__all__ = ["COMMANDS", "main"]

COMMANDS = frozenset(name for name in app if not name.startswith("-"))
"""The names of all commands."""
