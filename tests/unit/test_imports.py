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


HELP = {
    *(
        "analyse.sibling_order",
        "errors",
        "host_program",
        "records.urls",
        "tables.export",
        "tables.text",
    ),
    *("cli.many_runs", "cli.options", "cli.plan_model", "cli.run_model", "cli.show_model"),
    *("tables.export", "tables.text", "targets.inputs", "targets.names"),
}
"""What the command line imports before it runs a command: its options, and how it prints."""
SUMMARY = {
    *("analyse.parameters", "analyse.sibling_order", "analyse.signatures", "analyse.summary"),
    *("api.summary", "errors", "targets.names", "targets.readers", "views.model_text"),
    *("capture.model.module_parts", "capture.model.structure", "capture.tensor.description"),
    *("capture.torch_internals", "records.json_data", "records.model", "records.urls"),
    *("results.report", "results.result", "results.summary", "tables.export", "tables.text"),
}
"""What the first summary of a process imports. The records of runs, traces and measurements alone
would take longer than everything else here."""


def ours(loaded: set[str]) -> set[str]:
    """The modules of Torchglass, without packages, which are empty."""
    names = {name.removeprefix("torchglass.") for name in loaded if name.startswith("torchglass.")}
    return {name for name in names if not any(one.startswith(f"{name}.") for one in names)}


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

    assert loaded.isdisjoint({"torch", "numpy", "textual", "starlette", "uvicorn", "pygraphviz"})
    assert loaded.isdisjoint({"asyncio", "concurrent", "subprocess", "ssl", "tempfile"})
    assert ours(loaded) == HELP


def test_a_first_summary_imports_only_what_it_shows() -> None:
    loaded = loaded_after("import torch, torchglass as tg\nprint(tg.summary(torch.nn.ReLU()))")

    assert loaded.isdisjoint({"sqlite3", "textual", "starlette"})
    assert ours(loaded) == SUMMARY


@pytest.mark.parametrize(
    "call", ["tg.summary(model, x)", "tg.trace(model, x)"], ids=["summary", "trace"]
)
def test_a_first_forward_imports_no_measurements_and_no_runs(call: str) -> None:
    loaded = loaded_after(
        f"import torch, torchglass as tg\nmodel, x = torch.nn.ReLU(), torch.ones(2)\nstr({call})"
    )

    assert "capture.isolated_run" in ours(loaded)
    assert loaded.isdisjoint(
        {"sqlite3", "textual", "torchglass.store", "torchglass.analyse.memory"}
    )
    assert ours(loaded).isdisjoint({"records.run", "records.measures", "records.training"})


@pytest.mark.parametrize("command", ["summary", "tree", "runs", "explore", "flops"])
def test_the_options_of_a_command_are_read_without_its_code(command: str) -> None:
    loaded = loaded_after(
        f"from torchglass.cli import main\nassert main(['{command}', '--help']) == 0"
    )

    assert "torch" not in loaded
    assert ours(loaded) == HELP


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
