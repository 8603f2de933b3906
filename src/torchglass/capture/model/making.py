"""Frozen records made in great numbers, as quickly as any other object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Record = TypeVar("Record")


def quickly(record: Callable[P, Record]) -> Callable[P, Record]:
    """What makes the same records as a frozen dataclass with slots, in a fraction of the time.

    A frozen class calls a function to set each of its fields. Here a record begins as an object of
    a class that has the same slots and is not frozen, and changes its class once it is filled.
    """

    def freeze(self: Any) -> None:
        self.__class__ = record

    same_fields = [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))
        for one in fields(record)  # type: ignore[arg-type]
    ]
    return make_dataclass(
        getattr(record, "__name__", ""),
        same_fields,
        namespace={"__post_init__": freeze},
        slots=True,
        kw_only=True,
    )
