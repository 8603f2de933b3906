"""The commands that show a model, a checkpoint or a run, serve programs, and start the demo."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.cli.options import (
    AS_TABLE,
    EVERYTHING,
    EXPLORABLE,
    LOOKING,
    PRINTED,
    PROGRAMS,
    STARTING,
    STDOUT,
    USUAL,
    Common,
    Debug,
    DisplayOptions,
    ExplorableOptions,
    File,
    Flag,
    Inputs,
    ResultOptions,
    TableOptions,
    Target,
    app,
    expect_one_printed,
    export,
    stdout_for_results,
    tell,
    terminal_width,
)
from torchglass.host_program import has_terminal
from torchglass.records.urls import place_text
from torchglass.tables.export import json_text
from torchglass.tables.text import aligned_rows
from torchglass.targets.inputs import make_inputs, ready_to_run
from torchglass.targets.names import resolve

if TYPE_CHECKING:
    from torchglass.results.summary import Summary


@app.command(group=LOOKING)
def summary(
    target: Target,
    /,
    *,
    shown: DisplayOptions = EVERYTHING,
    output: TableOptions = AS_TABLE,
    common: Common = USUAL,
) -> None:
    """Print the modules of a model with shapes, parameters and sizes.

    ```
    torchglass summary torchvision.models:resnet18 --input 1x3x224x224
    torchglass summary net.py:Net --depth 2 --sort params
    torchglass summary weights.safetensors --json | jq .
    ```
    """
    output.check()
    output.show(_summary(target, shown, common))


@app.command(group=LOOKING)
def tree(
    target: Target,
    /,
    *,
    shown: DisplayOptions = EVERYTHING,
    output: ResultOptions = PRINTED,
    common: Common = USUAL,
) -> None:
    """Print a model as a tree of modules with settings and parameters.

    ```
    torchglass tree net.py:Net
    torchglass tree torchvision.models:resnet50 --depth 2 --fold
    torchglass tree net.py:Net --input 1x3x224x224
    ```
    """
    result = _summary(target, shown, common)
    output.show(result, text=result.tree(width=terminal_width()))


@app.command(group=LOOKING, usage="Usage: torchglass explore [OPTIONS] [TARGET]")
def explore(
    target: Target | None = None,
    /,
    *,
    input: Inputs = (),
    against: Path | None = None,
    common: Common = USUAL,
) -> None:
    """Browse a model or a run in the terminal. Press `?` for the keys and `q` to quit.

    ```
    torchglass explore net.py:Net --input 1x3x224x224
    torchglass explore runs/mnist.glass
    torchglass explore after.safetensors --against before.safetensors
    ```

    Without a target it lists the runs and checkpoints in the current folder. Without a terminal
    it prints the same as `summary`.

    Parameters
    ----------
    against
        Compare with this model or checkpoint.
    """
    from torchglass.api import explore

    if target is not None and not has_terminal():
        shown = place_text(target)
        compared = f"{shown} {against}" if against else shown
        tell(
            f"the explorer needs a terminal, so this is `torchglass summary {shown}`. "
            f"`torchglass report {compared} --out page.html` writes a web page."
        )
        print(_summary(target, DisplayOptions(input=input), common).table(width=terminal_width()))
        return
    with stdout_for_results():
        model = None if target is None else resolve(target)
        inputs, named = make_inputs(input, model)
    explore.walk_through(model, tuple(inputs), named, against=against, unsafe=common.unsafe)


@app.command(group=LOOKING)
def diagnose(
    run: Annotated[Path, Parameter(help="A recorded run: a file, or the folder of its ranks.")],
    /,
    *,
    output: ResultOptions = PRINTED,
    html: File | None = None,
    debug: Debug = False,
) -> int:
    """Say what is wrong with a training, where, since when, and what to change.

    ```
    torchglass diagnose runs/mnist.glass
    torchglass diagnose runs/mnist.glass --json | jq .verdict
    ```

    The exit code is 0 for a healthy training, 1 for warnings and 3 for a broken one, so that a
    script can stop on it.

    Parameters
    ----------
    html
        Write a self-contained HTML file; `-` prints it.
    """
    from torchglass.api.diagnose import diagnose as diagnose_run

    expect_one_printed(json=output.json, html=html)
    result = diagnose_run(run)
    if html:
        export(result.to_html, html)
    if html != STDOUT:
        output.show(result)
    return result.exit_code


@app.command(group=LOOKING, usage="Usage: torchglass compare [OPTIONS] A B")
def compare(
    a: Target,
    b: Target,
    /,
    *,
    input: Inputs = (),
    output: ExplorableOptions = EXPLORABLE,
    common: Common = USUAL,
) -> int:
    """Compare two models, checkpoints or runs: structure, values, and where they first diverge.

    ```
    torchglass compare before.safetensors after.safetensors
    torchglass compare net.py:Net port.py:Net --input 1x3x224x224
    torchglass compare runs/first.glass runs/second.glass
    torchglass compare before.safetensors after.safetensors --explore
    ```

    With `--input` both models run on the same values, and the first op whose result differs by
    more than rounding is named with its line of code. Both must create the same weights, for
    example from a seed or a checkpoint. The exit code is 0 if they are the same, 1 if they are
    different and 2 for an error, so that a script can stop on it.
    """
    from torchglass.api.compare import compare as compare_targets

    output.check()
    with stdout_for_results():
        first, inputs, named = _with_inputs(a, input)
        second = _with_inputs(b, input)[0] if input else b
        result = compare_targets(first, second, *inputs, unsafe=common.unsafe, **named)
    output.show(result)
    return result.exit_code


@app.command(
    alias="serve", group=LOOKING, usage="Usage: torchglass view [OPTIONS] TARGET [OTHERS...]"
)
def view(
    target: Target,
    /,
    *others: Path,
    input: Inputs = (),
    port: int = 5000,
    root_path: Annotated[str, Parameter(show_default=False)] = "",
    open: Flag = False,
    common: Common = USUAL,
) -> None:
    """Show a model or a run in the browser, until Ctrl-C. Several targets are compared.

    ```
    torchglass view runs/mnist.glass
    torchglass view net.py:Net --input 1x3x224x224 --port 8080 --open
    torchglass serve runs
    ```

    Parameters
    ----------
    others
        More targets to compare with the first.
    port
        Port of the server, which only this machine can reach.
    root_path
        Path prefix under which a proxy serves the page.
    open
        Open the page in the browser.
    """
    from torchglass.api import view

    with stdout_for_results():
        shown, inputs, named = _with_inputs(target, input)
        server = view.view(
            shown,
            *inputs,
            against=list(others),
            port=port,
            root_path=root_path,
            open_browser=open,
            unsafe=common.unsafe,
            **named,
        )
    with contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url}\nPress Ctrl-C to stop.", flush=True)
        server.wait()


@app.command(
    group=LOOKING, usage="Usage: torchglass report --out PATH [OPTIONS] TARGET [OTHERS...]"
)
def report(
    target: Target, /, *others: Path, out: Path, input: Inputs = (), common: Common = USUAL
) -> None:
    """Write the web page of a model or a run as one HTML file that needs no server.

    ```
    torchglass report runs/mnist.glass --out mnist.html
    ```

    Parameters
    ----------
    others
        More targets to compare with the first.
    out
        The file to write.
    """
    from torchglass.api import view

    with stdout_for_results():
        shown, inputs, named = _with_inputs(target, input)
        view.view(shown, *inputs, against=list(others), save=out, unsafe=common.unsafe, **named)
    tell(f"wrote {out}")


def _with_inputs(target: Path, texts: Inputs) -> tuple[object, list[Any], dict[str, Any]]:
    """A target and its inputs; a target without inputs stays a name."""
    return ready_to_run(target, texts) if texts else (target, [], {})


def _summary(target: Path, shown: DisplayOptions, common: Common) -> Summary:
    from torchglass.api import summary

    with stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(shown.input, model, fake=shown.fake)
        return summary.summary(
            model,
            *inputs,
            fake=shown.fake,
            depth=shown.depth,
            sort=shown.sort,
            fold=shown.fold,
            unsafe=common.unsafe,
            **named,
        )


@app.command(group=STARTING, usage="Usage: torchglass demo [OPTIONS] [FOLDER]")
def demo(
    folder: Path | None = None,
    /,
    *,
    steps: Annotated[int, Parameter(validator=Number(gte=1))] = 300,
    broken: Flag = False,
    debug: Debug = False,
) -> None:
    """Train a small model under `tg.watch`, then explore the recorded run.

    ```
    torchglass demo
    torchglass demo --broken
    torchglass demo somewhere --steps 100
    ```

    Parameters
    ----------
    folder
        Folder for the run and its page. Default: `torchglass-demo`.
    steps
        Number of training steps.
    broken
        Train with a mistake, to see what Torchglass says about it.
    """
    from torchglass.demo import run

    run(folder, steps=steps, broken=broken)


@app.command(group=PROGRAMS, usage="Usage: torchglass schema [NAME]")
def schema(name: str | None = None, /) -> None:
    """Print the JSON Schema of what a command prints with `--json`.

    ```
    torchglass schema diagnosis
    ```

    Parameters
    ----------
    name
        The name in the field `schema` of the JSON: `flops` or `torchglass/flops`. Default: list
        all names.
    """
    from torchglass.results import schemas

    if name is not None:
        print(json_text(schemas.schema(name)))
        return
    fields = schemas.all_fields()
    print("\n".join(aligned_rows([(one, fields[one].title) for one in schemas.report_names()])))


@app.command(group=PROGRAMS, usage="Usage: torchglass mcp [OPTIONS] [FOLDER]")
def mcp(folder: Path = Path(), /, *, allow_code: Flag = False, debug: Debug = False) -> None:
    """Serve runs, traces and checkpoints to a coding agent over MCP (stdio), read-only.

    ```
    torchglass mcp runs
    ```

    Add it to an agent as the command `torchglass` with the arguments `mcp` and a folder. Needs
    `pip install 'torchglass[mcp]'`.

    Parameters
    ----------
    folder
        Folder that names of runs are relative to. Default: the current one.
    allow_code
        Also accept targets that run code, such as `net.py:Net`.
    """
    from torchglass.api.backends import integration

    integration("mcp", "torchglass mcp").serve(folder, allow_code=allow_code)


@app.command(group=PROGRAMS)
def lsp(*, trace: Path | None = None, debug: Debug = False) -> None:
    """Show shapes, dtypes, times and problems in an editor: a language server on stdio.

    ```
    torchglass lsp
    ```

    It shows the latest trace (`torchglass trace … --out pass.glass`) and the problems of the latest
    run in the folder that the editor has open. Needs `pip install 'torchglass[lsp]'`.

    Parameters
    ----------
    trace
        Show this trace. Default: the latest one.
    """
    from torchglass.api.backends import integration

    integration("lsp", "torchglass lsp").serve(trace and trace.resolve())


@app.command(group=PROGRAMS)
def skill() -> None:
    """Print instructions for a coding agent that uses Torchglass.

    ```
    torchglass skill > SKILL.md
    ```
    """
    from importlib.resources import files

    print(files("torchglass.integrations").joinpath("skill.md").read_text(encoding="utf-8").strip())


@app.command(group=STARTING)
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script for Tab completion in your shell.

    ```
    torchglass completion bash >> ~/.bashrc
    torchglass completion zsh > ~/.zfunc/_torchglass
    torchglass completion fish > ~/.config/fish/completions/torchglass.fish
    ```
    """
    print(app.generate_completion(shell=shell))
