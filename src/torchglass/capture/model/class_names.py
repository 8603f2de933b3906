"""The name of a module's class, and where its code is."""

from __future__ import annotations

import re
import sys
from types import CodeType, FunctionType

import torch
from torch import fx, nn

from torchglass.capture.torch_internals import script_type
from torchglass.records.model import Ancestor, ClassSource

_MANGLED = re.compile(r"___torch_mangle_\d+\.")


def class_name(thing: object) -> str:
    """The qualified name of an object's class, a scripted module's being that of its origin."""
    if isinstance(thing, torch.jit.ScriptModule) and "_c" in vars(thing):
        compiled: str = script_type(thing).qualified_name()
        return _MANGLED.sub("", compiled).removeprefix("__torch__.")
    cls = type(thing)
    if isinstance(thing, fx.GraphModule):
        # Each one has a class of its own, made inside a function and renamed after what was traced.
        return f"{fx.GraphModule.__module__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def class_source(cls: type) -> ClassSource | None:
    """Where the code of a class is; None where no file says."""
    forward = _code(_defined(cls, "forward"))
    file = _class_file(cls)
    forward_file = "" if forward is None else forward.co_filename
    if not file and not forward_file:
        return None
    return ClassSource(
        file=file or forward_file,
        forward_line=None if forward is None else forward.co_firstlineno,
        forward_file="" if forward_file == file else forward_file,
        ancestors=tuple(
            Ancestor(class_name=f"{base.__module__}.{base.__qualname__}", file=_class_file(base))
            for base in cls.__mro__[1:]
            if base is not object
        ),
    )


def _class_file(cls: type) -> str:
    """The file of the class statement, by the methods written in it or by its Python module."""
    for value in vars(cls).values():
        code = _code(value)
        # Generated methods name no file, and functions put in from elsewhere another one.
        if code and value.__module__ == cls.__module__ and code.co_filename != "<string>":
            return code.co_filename
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _defined(cls: type, name: str) -> object:
    """What a class or the nearest of its bases says under a name, untouched by descriptors."""
    for base in cls.__mro__:
        if base is nn.Module:
            break
        if name in vars(base):
            return vars(base)[name]
    return None


def _code(value: object) -> CodeType | None:
    """The code of a function, under whatever decorators it has; nothing else is touched."""
    seen: set[int] = set()
    while isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        if "__wrapped__" not in vars(value):
            return value.__code__
        value = vars(value)["__wrapped__"]
    return None
