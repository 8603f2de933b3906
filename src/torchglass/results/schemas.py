"""The JSON Schema of every report, made from `report_fields.txt` and from the records.

>>> schema("diagnosis")["properties"]["verdict"]
{'type': 'string', 'description': '"healthy", "warning" or "broken"'}
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from torchglass.errors import LookupFailedError
from torchglass.records.comparison import Divergence
from torchglass.records.findings import Evidence, Finding
from torchglass.records.trace import SourceLine
from torchglass.results.comparison import ComparisonRow
from torchglass.results.result import SCHEMA_VERSION
from torchglass.targets.names import near_or_all

_RECORDS = {one.__name__: one for one in (ComparisonRow, Divergence, Evidence, Finding, SourceLine)}
"""The records that reports refer to; their fields are not listed twice."""
_LEAVES = ("string", "integer", "number", "boolean", "object")
_TYPES: dict[Any, str] = {str: "string", int: "integer", bool: "boolean"}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Field(NamedTuple):
    """One field of a JSON object."""

    name: str
    type: str
    """As in the file: "integer", "string[]", "Finding[]", "number?"."""
    meaning: str
    required: bool


class ReportFields(NamedTuple):
    """The fields of a report, or of an object in one."""

    title: str
    """What the report says, and the command that prints it; "" for an object in a report."""
    fields: tuple[Field, ...]


@cache
def all_fields() -> Mapping[str, ReportFields]:
    """The fields of all reports and of their objects, by name."""
    text = files(__package__).joinpath("report_fields.txt").read_text(encoding="utf-8")
    sections = re.split(r"^[=:] ", text, flags=re.MULTILINE)[1:]
    return dict(map(_section, sections))


def report_names() -> list[str]:
    """The names of the reports: "summary", "flops"."""
    return [name for name, one in all_fields().items() if one.title]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one report: "flops" or "torchglass/flops"."""
    short = name.removeprefix("torchglass/")
    if short not in report_names():
        raise LookupFailedError(f"no report is called {name!r}{near_or_all(short, report_names())}")
    own = _object(all_fields()[short].fields)
    head = {"schema": {"const": f"torchglass/{short}"}, "version": {"const": SCHEMA_VERSION}}
    definitions: dict[str, Any] = {}
    _define(own, definitions)
    return {
        "$schema": _DRAFT,
        "title": f"torchglass/{short}",
        "description": all_fields()[short].title,
        **own,
        "required": ["schema", "version", *own["required"]],
        "properties": {**head, **own["properties"]},
        "$defs": definitions,
    }


def _section(text: str) -> tuple[str, ReportFields]:
    head, *lines = text.splitlines()
    name, _, title = head.partition(": ")
    fields = (re.split(r" {2,}", line.strip(), maxsplit=2) for line in lines if line.strip())
    return name, ReportFields(
        title,
        tuple(
            Field(field.rstrip("?"), kind, meaning, not field.endswith("?"))
            for field, kind, meaning in fields
        ),
    )


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [field.name for field in fields if field.required],
        "properties": {
            field.name: {**_type(field.type), "description": field.meaning} for field in fields
        },
    }


def _type(text: str) -> dict[str, Any]:
    if text.endswith("?"):
        return _or_null(_type(text[:-1]))
    if text.endswith("[]"):
        return {"type": "array", "items": _type(text[:-2])}
    if text.endswith("{}"):
        return {"type": "object", "additionalProperties": _type(text[:-2])}
    if text == "number":
        # NaN and Inf are written as null.
        return {"type": ["number", "null"]}
    if text in _LEAVES:
        return {"type": text}
    return {} if text == "any" else {"$ref": f"#/$defs/{text}"}


def _or_null(one: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [one, {"type": "null"}]}


def _define(part: Any, definitions: dict[str, Any]) -> None:
    """Add the definitions that a schema refers to, and those that they refer to."""
    for name in _references(part):
        if name not in definitions:
            record = _RECORDS.get(name) or _nested_records().get(name)
            definitions[name] = (
                _object(all_fields()[name].fields) if record is None else _record(record)
            )
            _define(definitions[name], definitions)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


@cache
def _nested_records() -> dict[str, Any]:
    """The records inside of those that reports refer to, by name."""
    found: dict[str, Any] = {}
    waiting: list[Any] = list(_RECORDS.values())
    while waiting:
        kind = waiting.pop()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            if kind.__name__ in found:
                continue
            found[kind.__name__] = kind
            waiting += typing.get_type_hints(kind).values()
        waiting += typing.get_args(kind)
    return found


def _record(record: Any) -> dict[str, Any]:
    """The schema of a record; a field at its default is left out of the JSON."""
    hints = typing.get_type_hints(record)
    fields = dataclasses.fields(record)
    return {
        "type": "object",
        "required": [
            one.name
            for one in fields
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ],
        "properties": {one.name: _hint(hints[one.name]) for one in fields},
    }


def _hint(kind: Any) -> dict[str, Any]:
    """The schema of a declared type."""
    if isinstance(kind, typing.NewType):
        return _hint(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return {"$ref": f"#/$defs/{typing.cast(type, kind).__name__}"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [_hint(one) for one in arguments if one is not type(None)]
        return {"anyOf": [*kinds, {"type": "null"}]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        items = _hint(arguments[0]) if Ellipsis in arguments else {}
        return {"type": "array", "items": items}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _hint(arguments[1])}
    return {} if kind not in (*_TYPES, float) else _type(_TYPES.get(kind, "number"))
