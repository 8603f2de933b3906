"""`%load_ext torchglass` in IPython: the magics `%explore` and `EMA`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from IPython.testing.globalipapp import start_ipython
from torch import nn

import torchglass as tg
from torchglass.integrations.jupyter import install


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    shell = start_ipython()  # type: ignore[no-untyped-call]
    yield shell
    shell.reset()


@pytest.mark.parametrize(
    ("line", "explored"),
    [
        ("model", ("MODEL",)),
        ("model, x", ("MODEL", "X")),
        ("runs/today.glass", ("runs/today.glass",)),
        ("net.py:Net", ("net.py:Net",)),
        ("", ("LAST",)),
    ],
)
def test_the_ipython_magics_pass_their_arguments_to_explore(
    shell: Any, line: str, explored: tuple[str, ...]
) -> None:
    seen: list[tuple[Any, ...]] = []
    install(shell, lambda *given: seen.append(given))
    shell.user_ns.update({"model": "MODEL", "x": "X", "_": "LAST"})

    for magic in ("explore", "EMA"):
        shell.run_line_magic(magic, line)

    assert seen == [explored, explored]


def test_ema_explores_the_last_recorded_model(shell: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    install(shell, lambda *given: seen.append(given))
    shell.user_ns.update({"net": lambda: nn.Linear(4, 2), "tg": tg, "torch": torch, "_": ""})

    shell.run_cell("first, second, third = net(), net(), net()")
    shell.run_cell("EMA")
    shell.run_cell(
        "with tg.record_torch_module_forward_stats(second):\n    output = second(torch.ones(3, 4))"
    )
    shell.run_cell("EMA")
    shell.run_cell("output")
    shell.run_cell("EMA")

    names = shell.user_ns
    assert seen == [(names["third"],), (names["second"],), (names["second"],)]


def test_the_extension_adds_the_magics(shell: Any) -> None:
    shell.run_line_magic("load_ext", "torchglass")

    assert {"explore", "EMA"} <= shell.magics_manager.magics["line"].keys()
