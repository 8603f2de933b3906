"""What the program that Torchglass runs in is."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from torchglass.host_program import in_notebook, is_interactive


@pytest.fixture(autouse=True)
def _nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have run a shell in this process, which leaves its prompt behind."""
    monkeypatch.delattr(sys, "ps1", raising=False)


def test_importing_ipykernel_does_not_make_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))

    assert not in_notebook()
    assert not is_interactive()


@pytest.mark.parametrize(
    ("shell", "expected"),
    [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)],
    ids=["no shell", "a terminal's shell", "a notebook's shell"],
)
def test_a_shell_with_a_kernel_is_a_notebook(
    monkeypatch: pytest.MonkeyPatch, shell: object, expected: bool
) -> None:
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    assert in_notebook() is expected
    assert is_interactive() is expected
