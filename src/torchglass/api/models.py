"""The verbs that show a model, or whatever holds one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torchglass.errors import TargetError, ViewError
from torchglass.targets.names import resolve
from torchglass.targets.reading import is_live, open_reader, read

if TYPE_CHECKING:
    from torchglass.analyse.model.summary import Sort
    from torchglass.capture.forward.inputs import Dtype, Size
    from torchglass.results.summary import Summary
    from torchglass.views.web.server import Server


def summary(
    model: object,
    *inputs: Any,
    input_size: Size | Iterable[Size] | None = None,
    input_data: Any = None,
    dtypes: Dtype | Sequence[Dtype] | None = None,
    fake: bool = False,
    depth: int | None = None,
    col_names: Sequence[str] | None = None,
    sort: Sort | None = None,
    fold: bool = False,
    unsafe: bool = False,
    **kwargs: Any,
) -> Summary:
    """What a target is made of, as a table to print and as JSON, HTML and CSV.

    With inputs (those of forward, or torchinfo's `input_size` and `input_data`) one forward is run
    and shapes are shown, too; with `fake` it takes no memory. `depth`, `col_names`, `sort` and
    `fold` choose what is shown. `unsafe` lets a checkpoint run the code that it carries.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.ReLU())
    >>> print(summary(model, input_size=(1, 3, 32, 32)).tree())
    Sequential(
    ├── 624 parameters
    ├── 0: Conv2d(3→8, 5×5) [608 params]
    ├── 1: BatchNorm2d(8) [16 params]
    └── 2: ReLU [0 params]
    """
    from torchglass.results.summary import Summary

    target = _unpacked(resolve(model))
    if is_live(target):
        from torchglass.capture.forward.looking import look_at

        record, calls = look_at(
            target,
            inputs,
            kwargs,
            input_size=input_size,
            input_data=input_data,
            dtypes=dtypes,
            fake=fake,
        )
    elif inputs or kwargs or input_size is not None or input_data is not None:
        raise TargetError("only a live model can be run: leave the inputs out, or load the model")
    else:
        record, calls = read(target, unsafe=unsafe), None
    return Summary(record, calls, depth=depth, col_names=col_names, sort=sort, fold=fold)


def explore(target: object, *, unsafe: bool = False) -> None:
    """Walk through a target in the terminal, until `q`; `?` shows the keys."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ViewError(
            "the explorer needs a terminal; without one, print(tg.summary(model)) shows a model "
            'and tg.view(model, save="model.html") writes a page to open elsewhere'
        )
    from torchglass.views.tui.app import run_explorer

    run_explorer(open_reader(_unpacked(target), unsafe=unsafe))


@overload
def view(target: object, *, save: str | os.PathLike[str], unsafe: bool = False) -> Path: ...


@overload
def view(
    target: object, *, port: int = 5000, open_browser: bool = False, unsafe: bool = False
) -> Server: ...


def view(
    target: object,
    *,
    save: str | os.PathLike[str] | None = None,
    port: int = 5000,
    open_browser: bool = False,
    unsafe: bool = False,
) -> Server | Path:
    """Show a target as a page: served until `.close()`, or saved as one file that needs no server.

    A server's `.url` says where it is, and `.wait()` stays until Ctrl-C.

    >>> from torch import nn
    >>> view(nn.Linear(2, 3), save="linear.html").name
    'linear.html'
    """
    reader = open_reader(_unpacked(target), unsafe=unsafe)
    if save is not None:
        from torchglass.views.web.offline import write_page

        write_page(reader, Path(save))
        return Path(save)
    from torchglass.views.web.server import serve

    server = serve(reader, port=port)
    if open_browser:
        import webbrowser

        webbrowser.open(server.url)
    return server


def _unpacked(target: object) -> object:
    """What a verb gave back, as the reader or the record that is in it."""
    from torchglass.results.run import SavedRun
    from torchglass.results.summary import Summary

    if isinstance(target, SavedRun):
        return target.reader
    return target.model if isinstance(target, Summary) else target
