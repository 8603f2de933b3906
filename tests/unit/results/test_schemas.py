"""The schemas of the reports are valid, and the page about JSON lists the same fields."""

from __future__ import annotations

import jsonschema
import pytest

from docs.json_fields import PAGE, renewed
from torchglass.results.diagnosis import Diagnosis
from torchglass.results.schemas import all_fields, report_names, schema


def test_the_documentation_of_json_fields_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page) == page


@pytest.mark.parametrize("name", report_names())
def test_a_schema_is_valid_and_defines_all_references(name: str) -> None:
    found = schema(name)

    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["schema"] == {"const": f"torchglass/{name}"}


def test_every_object_belongs_to_a_report() -> None:
    used = {name for report in report_names() for name in schema(report)["$defs"]}

    assert {name for name, one in all_fields().items() if not one.title} <= used


def test_a_result_knows_its_schema() -> None:
    jsonschema.Draft202012Validator(Diagnosis([]).schema()).validate(Diagnosis([]).document())
