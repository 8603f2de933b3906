"""The commands that show a model, a checkpoint or a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.api import models
from torchglass.cli.options import EVERYTHING, USUAL, Common, File, Flag, Shown, Target, app
from torchglass.cli.output import export, stdout_for_results, tell
from torchglass.targets.inputs import make_inputs
from torchglass.targets.names import resolve
from torchglass.targets.reading import open_reader

if TYPE_CHECKING:
    from torchglass.results.summary import Summary


@app.command
def summary(
    target: Target,
    /,
    *,
    shown: Shown = EVERYTHING,
    json: Flag = False,
    html: File | None = None,
    csv: File | None = None,
    common: Common = USUAL,
) -> None:
    """Print what a model is made of: modules, shapes, parameters, memory.

    ```
    torchglass summary torchvision.models:resnet18 --input 1x3x224x224
    torchglass summary net.py:Net --depth 2 --sort params
    torchglass summary weights.safetensors --json | jq .
    ```

    Parameters
    ----------
    json
        Print JSON.
    html
        Write one HTML file that needs nothing else; `-` prints it.
    csv
        Write a CSV file; `-` prints it.
    """
    result = _summary(target, shown, common)
    if html:
        export(result.to_html, html)
    if csv:
        export(result.to_csv, csv)
    if json:
        print(result.to_json())
    elif not (html or csv):
        print(result)


@app.command
def tree(target: Target, /, *, shown: Shown = EVERYTHING, common: Common = USUAL) -> None:
    """Print a model as a tree: each module, what it does, how many parameters it has.

    torchglass tree net.py:Net
    torchglass tree torchvision.models:resnet50 --depth 2 --fold
    """
    print(_summary(target, shown, common).tree())


@app.command
def explore(target: Target, /, *, common: Common = USUAL) -> None:
    """Walk through a model or a run in the terminal; `?` shows the keys, `q` leaves.

    torchglass explore net.py:Net
    torchglass explore runs/mnist.glass
    """
    with stdout_for_results():
        reader = open_reader(target, unsafe=common.unsafe)
    models.explore(reader)


@app.command(alias="serve")
def view(
    target: Target,
    /,
    *,
    port: int = 5000,
    open: Flag = False,
    common: Common = USUAL,
) -> None:
    """Show a model or a run in the browser, until Ctrl-C.

    ```
    torchglass view runs/mnist.glass
    torchglass view net.py:Net --port 8080 --open
    ```

    Parameters
    ----------
    port
        Where to listen, on this machine only.
    open
        Open the page in the browser.
    """
    with stdout_for_results():
        server = models.view(target, port=port, open_browser=open, unsafe=common.unsafe)
    with contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url}\nCtrl-C ends it.", flush=True)
        server.wait()


@app.command
def report(target: Target, /, *, out: Path, common: Common = USUAL) -> None:
    """Write the page of a model or a run as one HTML file that needs no server.

    ```
    torchglass report runs/mnist.glass --out mnist.html
    ```

    Parameters
    ----------
    out
        The file to write.
    """
    with stdout_for_results():
        models.view(target, save=out, unsafe=common.unsafe)
    tell(f"wrote {out}")


def _summary(target: Path, shown: Shown, common: Common) -> Summary:
    with stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(shown.input, model)
        return models.summary(
            model,
            *inputs,
            fake=shown.fake,
            depth=shown.depth,
            sort=shown.sort,
            fold=shown.fold,
            unsafe=common.unsafe,
            **named,
        )
