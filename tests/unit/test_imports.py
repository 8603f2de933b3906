"""`import torchglass` brings in nothing heavy; tests of features import nothing internal."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchglass

HEAVY = ("torch", "textual", "starlette", "uvicorn", "pygraphviz", "safetensors", "rich", "numpy")


def loaded_after(code: str) -> set[str]:
    """The names of the modules that a fresh interpreter has loaded after running some code."""
    report = "import sys; print('\\nloaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize("module", HEAVY)
def test_importing_torchglass_imports_no_heavy_package(module: str, bare_import: set[str]) -> None:
    assert module not in bare_import


@pytest.fixture(scope="module")
def bare_import() -> set[str]:
    loaded = loaded_after("import torchglass")

    assert "torchglass" in loaded
    return loaded


def test_help_does_not_import_torch() -> None:
    loaded = loaded_after("from torchglass.cli import main\nassert main(['--help']) == 0")

    assert "torchglass.cli" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "textual", "starlette", "uvicorn", "pygraphviz"})
    assert loaded.isdisjoint({"torchglass.api", "torchglass.capture", "torchglass.store"})


def test_a_summary_does_not_import_the_run_store() -> None:
    loaded = loaded_after("import torch, torchglass as tg\nprint(tg.summary(torch.nn.ReLU()))")

    assert "torchglass.capture.model.structure" in loaded
    assert loaded.isdisjoint({"sqlite3", "torchglass.store", "torchglass.results.run"})


def test_accessing_the_public_names_does_not_import_torch() -> None:
    loaded = loaded_after("import torchglass as tg\nfor name in tg.__all__: getattr(tg, name)")

    assert "torchglass.classic" in loaded
    assert loaded.isdisjoint({"torch", "textual", "starlette", "uvicorn", "pygraphviz"})


@pytest.mark.parametrize(
    "verb", [pytest.param("guard(model)", marks=pytest.mark.slow), "watch(model, save=':memory:')"]
)
def test_every_function_works_as_the_first_call_of_a_process(verb: str) -> None:
    loaded_after(f"""
import warnings, torch, torchglass as tg
model = torch.nn.Linear(2, 2)
with warnings.catch_warnings(record=True) as told, tg.{verb}:
    model(torch.ones(1, 2)).sum().backward()
assert not told, told[0]
""")


def test_local_imports_name_existing_modules() -> None:
    """An import inside a function fails only when it runs, and mypy finds an installed copy."""
    package = Path(torchglass.__file__).parent
    files = {path: path.relative_to(package.parent) for path in package.rglob("*.py")}
    modules = {
        ".".join(name.with_suffix("").parts).removesuffix(".__init__") for name in files.values()
    }
    missing = {
        f"{files[path]}: {node.module}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchglass")
        if node.module not in modules
    }

    assert not missing


PUBLIC_MODULES = {"torchglass", "torchglass.errors"}
"""What a test of a feature may import of the package: what users import, too."""
THROUGH_THE_PUBLIC_API = ("features", "hard", "browser")


def names_imported(source: str) -> Iterator[str]:
    """What a module imports, and the modules of ours whose names it patches."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (_imported_from(node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A program that a test runs, or the name that it patches.
            yield from re.findall(
                r"^ *(?:from|import) (torchglass[\w.]+)", node.value, re.MULTILINE
            )
            yield from re.findall(r"^torchglass(?:\.\w+){2,}$", node.value)


def _imported_from(module: str, name: str) -> str:
    public = module == "torchglass" and (name in torchglass.__all__ or name == "open")
    return module if public else f"{module}.{name}"


@pytest.mark.parametrize(
    "file",
    [
        file
        for folder in THROUGH_THE_PUBLIC_API
        for file in sorted((Path(__file__).parents[1] / folder).glob("test_*.py"))
    ],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_feature_tests_use_only_the_public_api(file: Path) -> None:
    imported = names_imported(file.read_text("utf-8"))

    assert {name for name in imported if name.startswith("torchglass")} <= PUBLIC_MODULES
