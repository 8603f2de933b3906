"""The description of what a live model holds."""

from __future__ import annotations

from tests import make
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.model import Attribute, AttributeId, Page


def test_a_page_of_attributes_is_plain_data() -> None:
    weight = Attribute(
        id=AttributeId(3), name="weight", role="parameter", type_name="Parameter", spec=make.spec(2)
    )
    page = Page(attributes=(weight,), start=100, total=101)

    assert from_json_data(Page, to_json_data(page)) == page


def test_an_uncalled_property_has_no_value() -> None:
    plain = to_json_data(Attribute(id=AttributeId(0), name="device", role="property"))

    assert plain == {"id": 0, "name": "device", "role": "property"}
