"""Adds notebooks and classes to the site, and checks that it loads nothing from other hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src" / "torchglass"
_CLASS = re.compile(r"^::: class (\w+)$", flags=re.MULTILINE)
_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|link)[^>]+(?:src|href)=["']?(?:https?:)?//[^"' >]+"""
    r"""|@import\s*["']https?:|url\(["']?https?:"""
)


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Give each notebook a page; the notebook itself can be downloaded from there."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook = json.loads(file.content_string)
            name = file.src_uri.removesuffix(".ipynb") + ".md"
            files.append(File.generated(config, name, content=notebook_page(notebook, file.name)))
    return files


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Complete `::: class Summary` with the module that defines the class."""
    return _CLASS.sub(lambda found: f"::: {path_of_class(found[1])}", markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Fail if a page would load something from another host."""
    for file in Path(config.site_dir).rglob("*"):
        if file.suffix in {".html", ".css"}:
            found = _FROM_ELSEWHERE.search(file.read_text("utf-8"))
            if found:
                raise PluginError(f"{file.name} loads from another host: {found[0]}")


def path_of_class(name: str) -> str:
    """The dotted path of a class of Torchglass, which may move to another module."""
    line = re.compile(rf"^class {name}\b(?!\(Protocol)", flags=re.MULTILINE)
    files = [*SOURCE.glob("results/*.py"), *SOURCE.rglob("*.py")]
    found = [file for file in files if line.search(file.read_text("utf-8"))]
    if "results" in {file.parent.name for file in found}:
        found = [file for file in found if file.parent.name == "results"][:1]
    if len(found) != 1:
        raise PluginError(f"the reference names class {name}, which {len(found)} modules define")
    module = found[0].relative_to(SOURCE.parent).with_suffix("")
    return ".".join([*module.parts, name])


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its texts, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [_fenced("python", source), *map(_output, cell["outputs"])]
    # After the title, which the first cell has.
    title, _, rest = "\n\n".join(filter(None, parts)).partition("\n")
    return f"{title}\n\n[Download this notebook]({name}.ipynb)\n{rest}\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return "<div>" + "".join(data["image/svg+xml"]) + "</div>"
    text = "".join(output.get("text") or data.get("text/plain") or "")
    return _fenced("text", text.rstrip()) if text else ""


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
