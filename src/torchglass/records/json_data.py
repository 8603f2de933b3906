"""Converts records to JSON-ready data and back, for the store, the page and the exports.

    >>> to_json_data(TensorSpec(shape=(2, 3), dtype="float32", bytes=24))
    {'shape': [2, 3], 'dtype': 'float32', 'bytes': 24}

A field at its default is left out, which keeps a large model small; reading puts it back.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

R = TypeVar("R")

_ABSENT = object()
_PLAIN = {str, int, float, bool, type(None)}


def to_json_data(record: Any) -> Any:
    """A record, or any nest of records, as dicts, lists, strings and numbers."""
    # A large model has a hundred thousand values: most are found by their exact class.
    if type(record) in _PLAIN or isinstance(record, (str, int, float)):
        return record
    fields = _defaults(typing.cast(Any, type(record)))
    if fields is not None:
        plain = {}
        for name, default in fields:
            value = getattr(record, name)
            if value is not default and value != default:
                plain[name] = value if type(value) in _PLAIN else to_json_data(value)
        return plain
    if isinstance(record, Mapping):
        return {str(key): to_json_data(value) for key, value in record.items()}
    return [item if type(item) in _PLAIN else to_json_data(item) for item in record]


def nan_as_none(plain: Any) -> Any:
    """Plain data with None for NaN and Inf, which JSON does not have."""
    if isinstance(plain, dict):
        return {key: nan_as_none(value) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [nan_as_none(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def from_json_data(cls: type[R], plain: Any) -> R:
    """The record of a class from what `to_json_data` returned. Unknown names are ignored."""
    decode: Callable[[Any], R] = _decoder(typing.cast(Any, cls))
    return decode(plain)


@cache
def _defaults(cls: Any) -> tuple[tuple[str, Any], ...] | None:
    """The fields of a record's class and their defaults; None if it is not a record."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(
        (
            field.name,
            field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else _ABSENT
            if field.default is dataclasses.MISSING
            else field.default,
        )
        for field in dataclasses.fields(cls)
    )


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """The function that reads a declared type back."""
    if isinstance(kind, typing.NewType):
        return _decoder(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return _record_decoder(typing.cast(type, kind))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not type(None)]
        if len(kinds) > 1:  # Plain values of any of these types.
            inner = _leaf_decoder(tuple(leaf for kind in kinds for leaf in _LEAVES[kind]))
        else:
            inner = _decoder(kinds[0])
        return lambda plain: None if plain is None else inner(plain)
    if origin is tuple:
        return _tuple_decoder(arguments[0])
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        value = _decoder(arguments[1])
        return lambda plain: {key: value(item) for key, item in plain.items()}
    if origin is typing.Literal:
        kind = type(arguments[0])
    return _leaf_decoder(_LEAVES[kind]) if kind in _LEAVES else _as_it_is


_LEAVES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
}
"""The JSON types of the fields; a float may be written as an integer."""


def _leaf_decoder(kinds: tuple[type, ...]) -> Callable[[Any], Any]:
    def decode(plain: Any) -> Any:
        if type(plain) not in kinds:
            raise TypeError(f"{plain!r:.100} is not {kinds[0].__name__}")
        return plain

    return decode


def _tuple_decoder(kind: Any) -> Callable[[Any], Any]:
    if isinstance(kind, typing.NewType):
        return _tuple_decoder(kind.__supertype__)
    kinds = _LEAVES.get(kind)
    item = _decoder(kind)

    def decode(plain: Any) -> Any:
        if type(plain) not in (list, tuple):
            raise TypeError(f"{plain!r:.100} is not a list")
        if kinds is None:
            return tuple(map(item, plain))
        # Thousands of values at once: one by one they would take as long as everything else.
        if not set(map(type, plain)).issubset(kinds):
            raise TypeError(f"{plain!r:.100} is not a list of {kinds[0].__name__}")
        return tuple(plain)

    return decode


def _record_decoder(cls: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    decoders = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(cls)}

    def decode(plain: Mapping[str, Any]) -> Any:
        return cls(**{name: decoders[name](plain[name]) for name in plain if name in decoders})

    return decode


def _as_it_is(plain: Any) -> Any:
    return plain
