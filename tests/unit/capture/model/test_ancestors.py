"""What a module's class inherits from."""

from __future__ import annotations

from torch import nn

from torchglass.capture.model.structure import read_model


class Mine(nn.Conv2d):
    """A layer of the user's own."""


def test_base_classes_are_read_with_their_files() -> None:
    source = read_model(Mine(1, 1, 1)).classes[f"{__name__}.Mine"]

    names = [one.class_name.rpartition(".")[2] for one in source.ancestors]

    assert names == ["Conv2d", "_ConvNd", "Module"]
    assert source.ancestors[0].file == source.ancestors[1].file
    assert source.ancestors[2].file.endswith("module.py")
