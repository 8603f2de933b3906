"""Each kind of module is written in the signs that people use for it."""

from __future__ import annotations

import pytest

from torchglass.views.model_text import brief, kernel_size


@pytest.mark.parametrize(
    ("kind", "extra", "text"),
    [
        ("Conv2d", "3, 64, kernel_size=(7, 7), stride=(2, 2), bias=False", "Conv2d(3→64, 7×7)"),
        ("Conv1d", "1, 8, kernel_size=(5,), stride=(1,)", "Conv1d(1→8, 5)"),
        ("ConvTranspose2d", "8, 4, kernel_size=(2, 2), stride=(2, 2)", "ConvTranspose2d(8→4, 2×2)"),
        ("Conv1D", "nf=2304, nx=768", "Conv1D(768→2304)"),
        ("Linear", "in_features=2048, out_features=1000, bias=True", "Linear(2048→1000)"),
        ("LazyLinear", "in_features=0, out_features=10, bias=True", "LazyLinear(?→10)"),
        ("Embedding", "50257, 768, padding_idx=0", "Embedding(50257→768)"),
        ("BatchNorm2d", "64, eps=1e-05, momentum=0.1, affine=True", "BatchNorm2d(64)"),
        ("LayerNorm", "(4, 768), eps=1e-05, elementwise_affine=True", "LayerNorm(4×768)"),
        ("GroupNorm", "32, 64, eps=1e-05, affine=True", "GroupNorm(32, 64)"),
        ("MaxPool2d", "kernel_size=3, stride=2, padding=1", "MaxPool2d(3×3, stride=2)"),
        ("MaxPool2d", "kernel_size=(3, 2), stride=(3, 2)", "MaxPool2d(3×2)"),
        ("AvgPool3d", "kernel_size=2, stride=2, padding=0", "AvgPool3d(2×2×2)"),
        ("AdaptiveAvgPool2d", "output_size=(1, 1)", "AdaptiveAvgPool2d(1×1)"),
        ("LSTM", "4, 8, num_layers=2, batch_first=True", "LSTM(4→8, num_layers=2)"),
        ("ReLU", "inplace=True", "ReLU(inplace=True)"),
        ("Dropout", "p=0.1, inplace=False", "Dropout(p=0.1)"),
        ("Softmax", "dim=-1", "Softmax(dim=-1)"),
        ("Sequential", "", "Sequential"),
        ("Odd", "a" * 80, f"Odd({'a' * 23}…{'a' * 24})"),
        ("Evil", "first\nsecond", r"Evil(first\nsecond)"),
        ("ConvNorm", "anything, but=[1, (2, 3)]", "ConvNorm(anything)"),
    ],
)
def test_a_module_has_a_short_form(kind: str, extra: str, text: str) -> None:
    assert brief(kind, extra) == text


def test_a_kernel_has_as_many_sizes_as_dimensions() -> None:
    assert kernel_size("MaxPool2d", "kernel_size=3, stride=2") == "3×3"
    assert kernel_size("Conv1d", "1, 8, kernel_size=(5,)") == "5"
    assert kernel_size("Linear", "in_features=1, out_features=2") == ""
