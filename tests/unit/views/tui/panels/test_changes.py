"""What the details tell of a module that was compared with another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import module_at, subject_of, text_of
from tests.unit.views.tui.runs import changed, two_models
from torchglass.analyse.model_diff import compare
from torchglass.records.model import Module
from torchglass.views.tui.panels.details import describe


def other_class(module: Module) -> Module:
    return replace(module, class_name="my.Norm", extra="[b]64[/b]")


def told(path: str) -> str:
    before, after = two_models()
    compared = compare(
        before, changed(after, "blocks.0.mlp.1", other_class), {"embed.weight": 0.25}
    )
    state = subject_of(samples.store(after), comparison=compared)
    return text_of(describe(state, module_at(state, path), 80))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("probe", "added  only in the new model\n"),
        ("blocks.1", "removed  only in the old model\n"),
        ("embed", "weight  100×64 float32  Δ 0.25"),
        ("head", "weight  100×64 float32  →  120×64 float32"),
        ("", "no direct changes\n"),
        ("blocks.0", "1 changed below"),
    ],
)
def test_what_became_of_a_module_is_told(path: str, words: str) -> None:
    assert words in told(path)


def test_another_class_and_other_settings_are_told() -> None:
    text = told("blocks.0.mlp.1")

    assert "class before: torch.nn.modules.activation.GELU" in text
    assert "settings before: none" in text


def test_what_is_the_same_is_not_spoken_of() -> None:
    assert "changed" not in told("blocks.0.attention")
