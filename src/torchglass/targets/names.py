"""Resolves the name of a target: a file, a folder, a module or an object.

    net.py:Net                    a class, function or instance in a file
    torchvision.models:resnet18   … or in a module
    weights.safetensors           a checkpoint: a file, or a folder of shards
    runs/mnist.glass              a recorded run
    s3://bucket/mnist             … in an object store

Exceptions of the user's own code pass through unchanged.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchglass.errors import TargetError
from torchglass.records.urls import url_of

RUN_SUFFIX = ".glass"
ONNX_SUFFIX = ".onnx"

_MOST_NAMES = 12
_TARGET_SUFFIXES = (RUN_SUFFIX, ".safetensors", ".pt", ".pth", ".pt2", ".bin", ".ckpt", ONNX_SUFFIX)
_KINDS = (
    f"FILE.py:NAME, MODULE:NAME, a checkpoint (.safetensors, .pt, .pt2) or a run (*{RUN_SUFFIX})"
)
_NO_MODEL = "it has no nn.Module, no nn.Module class and no function without arguments"


def resolve(target: object) -> object:
    """The object that a target names: a live object, or the path of a checkpoint or a run.

    A class or function is called without arguments. A target that is not a name is returned.
    """
    if not isinstance(target, (str, os.PathLike)):
        return target
    text = str(os.fspath(target))
    if (url := url_of(text)) is not None:
        from torchglass.store.mirror import run_or_folder

        return run_or_folder(url)
    path = Path(text).expanduser()
    if text and (path.is_dir() or (path.is_file() and path.suffix != ".py")):
        return path
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise _incomplete(text.rstrip(":"))
    with _staying_alive(place):
        return _made(_attribute(_import(place), name, place), text)


def near(name: str, names: Iterable[str]) -> str:
    """A "did you mean" question with similar names; "" if there are none."""
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def near_or_all(name: str, names: Iterable[str]) -> str:
    """The names similar to a missing one, or else all names."""
    every = [known for known in names if known]
    return near(name, every) or (_listed(every) if every else "")


def _incomplete(text: str) -> TargetError:
    """Why a text without an object name is not a target."""
    if not text:
        return TargetError(f"no target given. A target is {_KINDS}.")
    path = Path(text).expanduser()
    if path.suffix in (*_TARGET_SUFFIXES, ".json") or (not path.exists() and os.sep in text):
        return TargetError(f"there is no file {text}{_near_files(path)}")
    with _staying_alive(text):
        found = _models_in(_import(text))
    if not found:
        return TargetError(f"{text} has no model: {_NO_MODEL}")
    return TargetError(f"{text} is a module, not a model. Write {text}:{found[0]}{_listed(found)}")


def _near_files(path: Path) -> str:
    folder = path.parent
    return near(path.name, (file.name for file in folder.iterdir())) if folder.is_dir() else ""


@contextlib.contextmanager
def _staying_alive(place: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise TargetError(
            f"{place} exited while it was imported (exit code {error.code}). "
            'Move its main code below `if __name__ == "__main__":`.'
        ) from error


def _import(place: str) -> ModuleType:
    """The module of a Python file or dotted name."""
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise TargetError(f"there is no file {place}{_near_files(path)}")
        return _import_file(path.resolve())
    if not all(part.isidentifier() for part in place.split(".")):
        raise TargetError(f"{place!r} is not a file or a module. A target is {_KINDS}.")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not f"{place}.".startswith(f"{error.name}."):
            raise
        raise TargetError(
            f"there is no module {error.name!r}. Install it, or run in the folder that contains it."
        ) from None


def _import_file(path: Path) -> ModuleType:
    """The module of a file, under its dotted name if it is part of a package."""
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    # The folder stays in sys.path, as when Python runs the file: code may import later.
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    loaded = sys.modules.get(path.stem)
    if loaded is None:
        return _run_file(path, path.stem)
    if getattr(loaded, "__file__", None) == str(path):
        return loaded
    # The name is taken by another module: a types.py must not replace Python's own.
    return _run_file(path, f"_torchglass_{path.stem}")


def _run_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    """The object with a dotted name in a module."""
    value: Any = module
    owner = place
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise TargetError(
                f"{owner} has no {part!r}{near(part, dir(value)) or _instead(value)}"
            ) from None
        owner = part
    return value


def _instead(owner: object) -> str:
    if not isinstance(owner, ModuleType):
        return ""
    found = _models_in(owner)
    return _listed(found) if found else f": {_NO_MODEL}"


def _listed(names: list[str]) -> str:
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"; available: {', '.join(names[:_MOST_NAMES])}{more}"


def _made(value: Any, text: str) -> object:
    """The result of calling a class or function; any other object unchanged."""
    from torch import nn

    # An instance may be callable and still be the target: a diffusers pipeline is.
    if isinstance(value, nn.Module) or not _is_recipe(value):
        return value
    required = _required(value)
    if required:
        name = text.rpartition(":")[2]
        raise TargetError(
            f"{text} needs arguments: {', '.join(required)}. Write a function without arguments, "
            f"`def make(): return {name}(…)`, and name that function."
        )
    return value()


def _is_recipe(value: Any) -> bool:
    return (
        isinstance(value, (type, functools.partial))
        or inspect.isroutine(value)
        or (callable(value) and hasattr(value, "__wrapped__"))
    )


def _required(recipe: Any) -> list[str]:
    """The names of the required arguments."""
    try:
        parameters = inspect.signature(recipe).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _models_in(module: ModuleType) -> list[str]:
    """The names of models in a module: instances, classes, and functions that create one."""
    from torch import nn

    def offers(name: str, value: Any) -> bool:
        if name.startswith("_") or name == "main":
            return False
        if isinstance(value, nn.Module):
            return True
        if not f"{getattr(value, '__module__', '')}.".startswith(f"{module.__name__}."):
            return False
        if isinstance(value, type):
            return issubclass(value, nn.Module)
        return inspect.isfunction(value) and not _required(value)

    return [name for name, value in vars(module).items() if offers(name, value)]


_DEPTH = 3
_MOST = 200


def find_targets(folder: Path) -> list[Path]:
    """The files that can be opened in a folder and its subfolders, latest first."""
    return find_files(folder, lambda path: path.suffix in _TARGET_SUFFIXES)


def find_files(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Some files in a folder and its subfolders, latest first."""
    found = filter(is_wanted, _files(folder, _DEPTH))
    return sorted(found, key=changed_at, reverse=True)[:_MOST]


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name.startswith(".") or path.name in {"node_modules", "site-packages"}:
            continue
        if path.is_dir() and depth > 1:
            yield from _files(path, depth - 1)
        elif path.is_file():
            yield path


def changed_at(path: Path) -> float:
    """When a file was last written; a file that is gone by now counts as the oldest."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
