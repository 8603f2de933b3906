"""How files name the modules that something was measured of."""

from __future__ import annotations

from torchglass.analyse.rows import Measured, full_name
from torchglass.records.model import Model


def class_of(measured: Measured, model: Model) -> str | None:
    """The full name of a module's class; None for one made as the model ran, and for no module."""
    module = None if measured.path is None else model.find(measured.path)
    return None if module is None else module.class_name


def first_cells(measured: Measured, model: Model) -> tuple[str, str | None]:
    """What a line of CSV begins with: a word for the module, as tables have it, and its class."""
    return full_name(measured.path, model), class_of(measured, model)
