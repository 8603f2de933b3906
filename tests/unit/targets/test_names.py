"""The name of a target becomes the thing, or one line that says what to write instead."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from torchglass.errors import TargetError
from torchglass.targets.names import resolve

NET = """
    import functools
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(width, 2))

    class Wide(nn.Module):
        def __init__(self, width: int, *, depth: int) -> None:
            super().__init__()

    class Pipeline:
        def __init__(self) -> None:
            self.unet = Net()

        def __call__(self, prompt: str) -> str:
            raise AssertionError("a pipeline is the target itself")

    def make() -> nn.Module:
        return Net(8)

    @functools.lru_cache(maxsize=None)
    def cached() -> nn.Module:
        return Net(16)

    net = Net(3)
    pipeline = Pipeline()

    if __name__ == "__main__":
        raise AssertionError("the file is imported, not run")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a file net.py; what the tests import is forgotten afterwards."""
    before = dict(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write(tmp_path / "net.py", NET)
    yield tmp_path
    for name in set(sys.modules) - set(before):
        if not name.startswith("torch"):
            del sys.modules[name]


def write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))


def refusal(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        resolve(target)
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "width"),
    [
        ("net.py:Net", 4),
        ("net.py:make", 8),
        ("net.py:cached", 16),
        ("net.py:net", 3),
        ("net:net", 3),
        ("./net.py:make", 8),
    ],
)
def test_a_target_can_be_a_class_a_function_or_an_instance(
    folder: Path, target: str, width: int
) -> None:
    model: Any = resolve(target)

    assert model.body[0].in_features == width


def test_a_dotted_name_resolves_attributes(folder: Path) -> None:
    assert isinstance(resolve("net.py:net.body"), nn.Sequential)


def test_a_callable_instance_is_the_target_itself(folder: Path) -> None:
    assert type(resolve("net.py:pipeline")).__name__ == "Pipeline"


def test_a_target_that_is_not_a_name_is_returned_unchanged() -> None:
    model = nn.Linear(1, 1)

    assert resolve(model) is model


def test_files_folders_and_runs_are_paths(folder: Path) -> None:
    (folder / "weights.pt").touch()
    (folder / "a.glass").touch()
    (folder / "epoch-3").touch()
    (folder / "shards").mkdir()

    assert [resolve(name) for name in ("weights.pt", "epoch-3", "a.glass", "shards")] == [
        Path("weights.pt"),
        Path("epoch-3"),
        Path("a.glass"),
        Path("shards"),
    ]
    assert resolve(Path("weights.pt")) == Path("weights.pt")


def test_a_file_in_a_package_may_import_its_neighbors(folder: Path) -> None:
    write(folder / "elsewhere/pack/__init__.py", "")
    write(folder / "elsewhere/pack/parts.py", "from torch import nn\nPart = nn.ReLU")
    write(folder / "elsewhere/pack/whole.py", "from .parts import Part\nmodel = Part()")

    assert isinstance(resolve("elsewhere/pack/whole.py:model"), nn.ReLU)


def test_a_file_may_import_its_siblings(folder: Path) -> None:
    write(folder / "elsewhere/sibling_part.py", "from torch import nn\nPart = nn.ReLU")
    write(folder / "elsewhere/sibling_whole.py", "from sibling_part import Part\nmodel = Part()")

    assert isinstance(resolve("elsewhere/sibling_whole.py:model"), nn.ReLU)


def test_a_file_named_like_a_loaded_module_does_not_replace_it(folder: Path) -> None:
    import types

    write(folder / "types.py", "from torch import nn\nmodel = nn.ReLU()")

    assert isinstance(resolve("types.py:model"), nn.ReLU)
    assert sys.modules["types"] is types


def test_a_file_loaded_once_is_not_run_again(folder: Path) -> None:
    assert resolve("net.py:net") is resolve("net.py:net")


def test_a_file_that_failed_is_not_left_half_imported(folder: Path) -> None:
    write(folder / "broken.py", "raise RuntimeError('mine')")

    with pytest.raises(RuntimeError, match="mine"):
        resolve("broken.py:model")

    assert "broken" not in sys.modules


def test_an_error_in_user_code_propagates(folder: Path) -> None:
    write(folder / "needy.py", "import not_installed_anywhere")

    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        resolve("needy:model")


def test_a_script_that_exits_on_import_is_refused_with_advice(folder: Path) -> None:
    write(folder / "script.py", "import sys\nsys.exit(2)")

    assert '`if __name__ == "__main__":`' in refusal("script.py:model")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "net.py",
            "net.py is a module, not a model. Write net.py:Net; available: Net, Wide, make, net",
        ),
        ("net", "net is a module, not a model. Write net:Net; available: Net, Wide, make, net"),
        (
            "net.py:",
            "net.py is a module, not a model. Write net.py:Net; available: Net, Wide, make, net",
        ),
        ("net.py:Nett", "net.py has no 'Nett'; did you mean Net?"),
        ("net.py:xyz", "net.py has no 'xyz'; available: Net, Wide, make, net"),
        ("net.py:net.bodi", "net has no 'bodi'; did you mean body?"),
        (
            "net.py:Wide",
            (
                "net.py:Wide needs arguments: width, depth. Write a function without arguments, "
                "`def make(): return Wide(…)`, and name that function."
            ),
        ),
        ("nett.py:Net", "there is no file nett.py; did you mean net.py?"),
        ("absent.pt", "there is no file absent.pt"),
        ("runs/absent.glass", "there is no file runs/absent.glass"),
        ("no/such/thing", "there is no file no/such/thing"),
        (
            "no_such_package.models:net",
            (
                "there is no module 'no_such_package'. Install it, or run in the folder that "
                "contains it."
            ),
        ),
    ],
)
def test_a_target_error_suggests_what_to_write(folder: Path, target: str, message: str) -> None:
    assert refusal(target) == message


def test_a_package_offers_the_models_of_its_modules() -> None:
    message = refusal("torch.nn")

    assert "; available: AdaptiveAvgPool1d, " in message
    assert message.endswith(", …")


@pytest.mark.parametrize("target", ["", ":", "a-b:c", "what is this:x"])
def test_an_invalid_target_error_lists_the_kinds_of_targets(folder: Path, target: str) -> None:
    assert "FILE.py:NAME, MODULE:NAME, a checkpoint" in refusal(target)
