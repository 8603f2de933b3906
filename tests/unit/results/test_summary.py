"""A summary shows one report in many ways, each of them held in a golden file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import networks
from tests.golden import assert_golden
from torchglass.errors import ViewError
from torchglass.records.model import Model, Module, ModuleId
from torchglass.results.summary import Summary

RESNET = Summary(networks.resnet(), networks.resnet_calls())
GPT = Summary(networks.gpt(), networks.gpt_calls())
FOLDED = Summary(networks.gpt(), networks.gpt_calls(), fold=True)


def without_style(page: str) -> str:
    return re.sub("<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)


def test_the_table_of_a_convolutional_network() -> None:
    assert_golden("resnet.txt", str(RESNET))


def test_the_tree_of_a_convolutional_network() -> None:
    assert_golden("resnet_tree.txt", RESNET.tree())


def test_the_json_of_a_convolutional_network() -> None:
    assert_golden("resnet.json", RESNET.to_json())


def test_the_csv_of_a_convolutional_network() -> None:
    assert_golden("resnet.csv", RESNET.to_csv())


def test_the_page_of_a_convolutional_network() -> None:
    assert_golden("resnet.html", without_style(RESNET.to_html()))


def test_the_table_of_a_transformer_with_tied_weights() -> None:
    assert_golden("gpt.txt", str(GPT))


def test_the_table_of_a_folded_transformer() -> None:
    assert_golden("gpt_folded.txt", str(FOLDED))


def test_the_tree_of_a_folded_transformer() -> None:
    assert_golden("gpt_folded_tree.txt", FOLDED.tree())


def test_the_page_of_a_folded_transformer() -> None:
    assert_golden("gpt_folded.html", without_style(FOLDED.to_html()))


def test_a_model_that_did_not_run_has_no_shape_column() -> None:
    text = str(Summary(networks.resnet()))

    assert "Output" not in text
    assert "without activations" in text


def test_the_repr_of_a_summary_is_its_table() -> None:
    assert repr(RESNET) == str(RESNET)


def test_a_notebook_gets_both_text_and_html() -> None:
    bundle = RESNET._repr_mimebundle_()

    assert bundle == {"text/plain": str(RESNET), "text/html": RESNET._repr_html_()}
    assert "<html" not in bundle["text/html"]


def test_json_is_the_dict_as_text() -> None:
    head = {"schema": "torchglass/summary", "version": 1}

    assert json.loads(RESNET.to_json()) == {**head, **RESNET.to_dict()}


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
def test_an_exported_file_has_the_returned_text(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"summary.{kind}"

    text = getattr(RESNET, f"to_{kind}")(path)

    assert path.read_text(encoding="utf-8") == text


def test_torchinfo_column_names_are_accepted() -> None:
    names = [
        "input_size",
        "output_size",
        "num_params",
        "params_percent",
        "kernel_size",
        "trainable",
    ]

    summary = Summary(networks.resnet(), networks.resnet_calls(), col_names=names)

    heading = str(summary).splitlines()[1]
    titles = ["Module", "Input", "Output", "Parameters", "Share", "Kernel", "Trainable"]
    assert heading.split() == titles


def test_an_unknown_column_error_lists_the_columns() -> None:
    with pytest.raises(ViewError, match=r"no column 'mult_adds'; the columns are class, .*device"):
        Summary(networks.resnet(), col_names=["mult_adds"])


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ViewError, match="params, bytes, name"):
        Summary(networks.resnet(), sort="size")  # type: ignore[arg-type]


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ViewError, match="0 or more"):
        Summary(networks.resnet(), depth=-1)


def test_a_thousand_level_tree_is_rendered_in_every_format() -> None:
    modules = [
        Module(
            id=ModuleId(level),
            path=".".join("0" * level),
            name="0",
            class_name="Sequential",
            parent=ModuleId(level - 1) if level else None,
            children=(ModuleId(level + 1),) if level < 1000 else (),
        )
        for level in range(1001)
    ]
    summary = Summary(Model(name="Deep", modules=tuple(modules)), fold=True)

    texts = [str(summary), summary.tree(), summary.to_html(), summary.to_json(), summary.to_csv()]

    assert all(text.count("Sequential") >= 1000 for text in texts)
