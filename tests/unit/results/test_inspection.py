from __future__ import annotations

from pathlib import Path

import pytest

from tests.inspections import inspected
from torchglass.errors import LookupFailedError
from torchglass.results.inspection import Inspection


def test_modules_are_found_by_path_and_an_alias_names_the_first() -> None:
    result = Inspection(inspected())

    assert list(result) == ["", "fc", "rest", "rest.0"]
    assert len(result) == 4
    assert result["rest.0"].calls == result["fc"].calls
    assert result["rest.0"].info["same_as"] == "fc"
    assert "output_shapes: [[2, 2]]" in str(result["fc"])


def test_an_unknown_path_error_suggests_an_existing_one() -> None:
    with pytest.raises(LookupFailedError, match="did you mean rest"):
        Inspection(inspected())["rest.1"]


def test_a_saved_inspection_is_read_again(tmp_path: Path) -> None:
    result = Inspection(inspected())

    file = result.save(tmp_path / "new" / "net.json")

    assert Inspection.read(file).record == result.record
    assert result.to_dict().keys() == {"Net"}
    assert str(Inspection.read(file)) == str(result)
