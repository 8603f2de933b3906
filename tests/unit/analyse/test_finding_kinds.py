"""The page about diagnoses has the kinds that the rules have, and every rule is documented."""

from __future__ import annotations

import re

import pytest

from docs.finding_kinds import PAGE, renewed
from torchglass.analyse.diagnosis.conclude import all_rules

KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")


def test_the_documentation_of_finding_kinds_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page) == page


@pytest.mark.parametrize("kind", list(all_rules()))
def test_every_rule_has_a_description(kind: str) -> None:
    assert KEBAB.fullmatch(kind)
    assert all_rules()[kind].check.__doc__
    assert set(all_rules()[kind].explains).isdisjoint({kind})
