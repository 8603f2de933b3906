"""Where a module is created and called, read from the code of the class around it."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from torchglass.analyse.class_source import module_lines
from torchglass.capture.model.structure import read_model


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(4, 8),
            nn.ReLU(),  # the second part
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.mlp(x)  # the call of mlp
        return inner


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))  # all blocks
        self.unused: nn.Module = nn.Linear(4, 4)  # with a type
        nn.init.zeros_(self.unused.weight)  # the start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:  # the loop
            x = block(x)
        return x


class Derived(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unused(super().forward(x))  # type: ignore[no-any-return]  # used here


def line_with(text: str) -> int:
    source = inspect.getsource(inspect.getmodule(Net) or Net).splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def test_a_module_in_a_sequential_has_the_line_of_its_argument() -> None:
    found = module_lines(read_model(Net()), "blocks.1.mlp.1")

    assert found.created is not None
    assert found.created.line == line_with("# the second part")
    assert found.created.function == "__init__"
    assert [one.line for one in found.used] == [line_with("# the call of mlp")]


def test_modules_created_in_a_loop_have_the_line_of_their_list() -> None:
    found = module_lines(read_model(Net()), "blocks.1")

    assert found.created is not None
    assert found.created.line == line_with("# all blocks")
    assert [one.line for one in found.used] == [line_with("# the loop")]


def test_an_uncalled_module_has_the_lines_of_its_siblings() -> None:
    found = module_lines(read_model(Net()), "unused")

    assert found.created is not None
    assert found.created.line == line_with("# with a type")
    assert [one.line for one in found.set_up] == [line_with("# the start")]
    assert found.used == ()
    assert [one.line for one in found.siblings_used] == [line_with("# the loop")]


def test_a_parameter_has_lines_like_a_module() -> None:
    found = module_lines(read_model(Net()), "unused.weight")

    assert found.created is not None
    assert found.created.line == line_with("# with a type")


def test_lines_are_found_in_a_class_and_its_base_class() -> None:
    found = module_lines(read_model(Derived()), "unused")

    assert found.created is not None
    assert found.created.line == line_with("# with a type")
    assert [one.line for one in found.used] == [line_with("# used here")]


def test_a_model_of_torch_classes_has_no_user_lines() -> None:
    found = module_lines(read_model(nn.Sequential(nn.ReLU())), "0")

    assert found.created is None
    assert found.used == ()
