"""A training watched from inside: what flows through its modules, their weights, its updates."""

from torchglass.capture.watch.watcher import Watcher

__all__ = ["Watcher"]
