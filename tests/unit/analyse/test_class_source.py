"""Code looked up when someone asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchglass.analyse.class_source import read_class
from torchglass.records.model import ClassSource

TEXT = '''\
import torch


class Net(torch.nn.Module):
    """Outer."""

    class Part(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x):
            return x


def build():
    @final
    class Net(torch.nn.Module):
        def forward(self, x):
            return -x
    return Net()
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(TEXT)
    return str(path)


def test_a_class_is_found_with_its_source(file: str) -> None:
    code = read_class(ClassSource(file=file), "net.Net")

    assert code is not None
    assert code.line == 4
    assert code.text.startswith("class Net(torch.nn.Module):\n")
    assert code.text.endswith("            return x\n")
    assert code.forward_line is None


def test_a_decorated_forward_starts_at_its_def_line(file: str) -> None:
    code = read_class(ClassSource(file=file, forward_line=8), "net.Net.Part")

    assert code is not None
    assert (code.line, code.forward_line, code.forward_file) == (7, 9, file)


def test_classes_with_the_same_name_are_distinguished_by_qualname(file: str) -> None:
    code = read_class(ClassSource(file=file, forward_line=16), "net.build.<locals>.Net")

    assert code is not None
    assert code.line == 15
    assert code.text.startswith("    @final\n    class Net")


def test_a_forward_inherited_from_another_file_is_found_there(file: str, tmp_path: Path) -> None:
    other = tmp_path / "base.py"
    other.write_text("class Base:\n    def forward(self): ...\n")
    source = ClassSource(file=file, forward_file=str(other), forward_line=2)

    code = read_class(source, "net.Net")

    assert code is not None
    assert (code.forward_file, code.forward_line) == (str(other), 2)


def test_a_file_that_changes_is_read_again(file: str) -> None:
    assert read_class(ClassSource(file=file), "net.Other") is None

    Path(file).write_text("# moved down by a comment\n\n\nclass Other: ...\n")

    code = read_class(ClassSource(file=file), "net.Other")
    assert code is not None
    assert code.line == 4


@pytest.mark.parametrize("text", ["", "class Net(:\n", "x = 1\n"])
def test_a_file_without_the_class_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(text)

    assert read_class(ClassSource(file=str(path)), "net.Net") is None


def test_a_deleted_file_says_so(tmp_path: Path) -> None:
    assert read_class(ClassSource(file=str(tmp_path / "gone.py")), "net.Net") is None
