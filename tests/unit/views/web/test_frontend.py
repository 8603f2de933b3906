"""The page's own source, checked by the tools of its language."""

from __future__ import annotations

import gzip

import pytest

import hatch_build
from tests.unit.views.web.frontend import FRONTEND, find_node, run
from torchglass.views.web import saved_page

MOST_BYTES = 100 * 1024


@pytest.fixture(scope="module")
def node() -> hatch_build.Node:
    node = find_node()
    if node is None:
        pytest.skip("there is no Node.js on this machine")
    return node


@pytest.mark.slow
def test_the_typescript_of_the_page_type_checks(node: hatch_build.Node) -> None:
    run(*node.node, "node_modules/typescript/bin/tsc")


def test_the_unit_tests_of_the_page_pass(node: hatch_build.Node) -> None:
    run(*node.node, "tests/run.mjs")


def test_the_scripts_of_the_page_stay_small() -> None:
    hatch_build.build_page(FRONTEND.parent)

    scripts = [saved_page.read(name) for name in ("page.js", "layout.js")]

    assert sum(len(gzip.compress(script)) for script in scripts) < MOST_BYTES
