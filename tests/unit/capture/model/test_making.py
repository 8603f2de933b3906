"""Records made in great numbers are the records that their class makes."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from torchglass.errors import quickly
from torchglass.records.model import Module, ModuleId


def test_a_record_built_by_the_fast_path_equals_its_class() -> None:
    fields = {"id": ModuleId(1), "path": "a.b", "name": "b", "class_name": "torch.nn.Linear"}

    made = quickly(Module)(**fields)  # type: ignore[arg-type]

    assert type(made) is Module
    assert made == Module(**fields)  # type: ignore[arg-type]
    assert hash(made) == hash(Module(**fields))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_record_built_by_the_fast_path_is_frozen() -> None:
    made = quickly(Module)(id=ModuleId(0), path="", name="", class_name="Net")

    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]

    assert replace(made, name="other").name == "other"


def test_a_field_that_is_missing_or_unknown_is_refused() -> None:
    make = quickly(Module)

    with pytest.raises(TypeError):
        make(path="")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        make(id=ModuleId(0), path="", name="", class_name="", color="red")  # type: ignore[call-arg]
