"""Which module of a model was running, from the frames of a stack.

A frame of a `forward` belongs to the class whose code is there. From the outermost frame to the
innermost, each leads from a module to one inside it. If it has several of that class, the
attributes on the line of the call decide, `self.head(x)`. If these do not, as in a loop over
layers, the parts in which their paths differ are `*`: "layers.*.attention".
"""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchglass.records.model import Model, Module

_ATTRIBUTE = re.compile(r"\bself\.(\w+)")


class FrameModules:
    """Finds the running module of a stack among the modules of a model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._by_class: dict[str, list[Module]] = defaultdict(list)
        for module in model.modules:
            self._by_class[module.class_name].append(module)
        self._forwards: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
        """Files of forwards, their lines and classes, by the name of the file."""
        for class_name, source in model.classes.items():
            if source.forward_line is not None and class_name in self._by_class:
                parts = _parts(source.forward_file or source.file)
                entry = ("/".join(parts), source.forward_line, class_name)
                self._forwards[parts[-1]].append(entry)

    def path(self, frames: Sequence[Mapping[str, Any]]) -> str | None:
        """The path of the innermost module, with `*` for what is not known; None outside of all.

        `frames` have the innermost one first.
        """
        found: list[Module] = []
        attributes: set[str] = set()
        is_inside_other = False
        for frame in reversed(frames):
            classes = self._classes(frame)
            inner = self._called(found, classes, attributes) if classes else []
            # Below the forward of something else, any model may have called an `nn.Linear`.
            is_inside_other |= _is_forward(frame) and not classes
            if len(inner) > 1 and not found and is_inside_other:
                continue
            if inner:
                found, attributes = inner, self._attributes(frame, inner[0].class_name)
        return _pattern([module.path for module in found]) if found else None

    def _classes(self, frame: Mapping[str, Any]) -> list[str]:
        """The classes whose forward a frame is in; several may inherit the same one."""
        if not _is_forward(frame):
            return []
        parts = _parts(str(frame["filename"]))
        entries = self._forwards.get(parts[-1], ())
        # The code may be in another folder here than where the snapshot was taken.
        alike = {entry[0]: _common_end(parts, _parts(entry[0])) for entry in entries}
        most = max(alike.values(), default=0)
        above = [one for one in entries if alike[one[0]] == most and one[1] <= frame["line"]]
        nearest = max((line for _, line, _ in above), default=0)
        return [name for _, line, name in above if line == nearest]

    def _called(
        self, callers: Sequence[Module], classes: Iterable[str], attributes: set[str]
    ) -> list[Module]:
        """The modules of some classes that one of the callers may call directly."""
        modules = [module for name in classes for module in self._by_class[name]]
        if not callers:
            return modules
        paths = {caller.path for caller in callers}
        found = [module for module in modules if self._caller(module) in paths]
        named = [one for one in found if _first_part(one.path, paths) in attributes]
        return named or found

    def _caller(self, module: Module) -> str | None:
        """The path of the nearest module around one that has a forward: a ModuleList has none."""
        parent = module.parent
        while parent is not None:
            around = self._model[parent]
            source = self._model.classes.get(around.class_name)
            if source is not None and source.forward_line is not None and _runs(around):
                return around.path
            parent = around.parent
        return None

    def _attributes(self, frame: Mapping[str, Any], class_name: str) -> set[str]:
        """The attributes of `self` on the line of a frame, if its file is here."""
        source = self._model.classes[class_name]
        line = linecache.getline(source.forward_file or source.file, frame["line"])
        return set(_ATTRIBUTE.findall(line))


def _is_forward(frame: Mapping[str, Any]) -> bool:
    return str(frame["name"]).rpartition(".")[2] == "forward"


def _runs(module: Module) -> bool:
    """Whether a module has a forward of its own; these have one that only raises."""
    return module.kind not in {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


def _parts(file: str) -> list[str]:
    return file.replace("\\", "/").split("/")


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _first_part(path: str, callers: Iterable[str]) -> str:
    """The attribute of its caller that a module is in."""
    around = max((one for one in callers if not one or path.startswith(f"{one}.")), key=len)
    return path[len(around) :].lstrip(".").partition(".")[0]


def _pattern(paths: Sequence[str]) -> str:
    """The parts that all paths have in common, with `*` for each that differs."""
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        columns = zip(*split, strict=True)
        return ".".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
    common = []
    for column in zip(*split, strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    return ".".join([*common, "*"])
