"""The arguments of a forward as its file has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchglass.records.model import ClassSource
from torchglass.views.model_text import forward_signature, misled_class


@pytest.mark.parametrize(
    ("code", "signature"),
    [
        (
            "    def forward(self, x, /, *rest, y: int = 1, **more):\n        pass\n",
            "(x, /, *rest, y: int=1, **more)",
        ),
        (
            "    @no_grad\n    def forward(\n        self, x\n    ):\n        pass\n",
            "(x)",
        ),
        ("    def forward(self): pass\n", "()"),
        ("    forward = lambda self, x: x\n", ""),
        ("    def forward(self, x\n", ""),
        ('    """never closed\n', ""),
        ("", ""),
    ],
)
def test_a_signature_is_read_from_the_file(tmp_path: Path, code: str, signature: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"class Net:\n{code}")

    assert forward_signature(ClassSource(file=str(file), forward_line=2)) == signature


def test_a_forward_not_written_in_python_has_no_signature() -> None:
    assert forward_signature(ClassSource(file="net.py")) == ""
    assert forward_signature(ClassSource(file="gone.py", forward_line=3)) == ""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("TypeError: Net.forward() missing 1 required positional argument: 'x'", "Net"),
        ("TypeError: make.<locals>.Net.forward() got an unexpected keyword argument 'y'", "Net"),
        ("TypeError: linear() takes 2 positional arguments but 3 were given", ""),
        ("ValueError: Net.forward() missing", ""),
    ],
)
def test_the_error_names_the_class_that_was_called_wrongly(error: str, name: str) -> None:
    assert misled_class(error) == name
