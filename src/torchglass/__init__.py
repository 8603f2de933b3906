"""Torchglass turns a PyTorch model into a glass box.

    import torchglass as tg

    print(tg.summary(model, input_size=(1, 3, 224, 224)))   # what it is
    tg.explore(model)                                       # walk through it in the terminal
    tg.view(model)                                          # … or in the browser

Names are imported when they are first used, so `import torchglass` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchglass.errors import TorchglassError as TorchglassError

_HOMES = {
    "torchglass.errors": ("TorchglassError",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = ["TorchglassError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'torchglass' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(__all__) | set(globals()))
