"""The verb `explore`: browse a model in the terminal."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import TargetError, ViewError
from torchglass.host_program import has_terminal, in_event_loop
from torchglass.targets.names import resolve

if TYPE_CHECKING:
    import torch

    from torchglass.classic.module_explorer import ExplorerConfig
    from torchglass.records.reader import Reader
    from torchglass.views.web.server import Server

_FEW = 5
"""Files that are named in a message."""


def explore(
    target: object = None,
    /,
    *inputs: Any,
    against: object = None,
    config: ExplorerConfig | None = None,
    unsafe: bool = False,
    **kwargs: Any,
) -> Server | None:
    """Browse a target in the terminal. Press `?` for the keys and `q` to quit.

    With inputs, the model runs first; the explorer then also shows shapes, times, FLOPs, memory and
    every op. Gradients, buffers and random state are unchanged afterwards. If the forward raises,
    the explorer opens with an explanation and with everything that ran before the error.

    In a notebook, or wherever an event loop is running, the web page opens instead.

    Args:
        target: A model, a checkpoint or run file, a result of another verb, or a name such as
            "net.py:Net". None lists the runs and checkpoints in the current folder.
        *inputs: Positional arguments of the model's forward.
        against: Another target. The explorer marks what differs from it.
        config: What to show in this session, as an `ExplorerConfig`.
        unsafe: Allow a checkpoint to run the code it contains (pickle).
        **kwargs: Keyword arguments of the model's forward. Pass an argument that has the name of an
            option by position.

    Returns:
        None, or the `Server` of the page where an event loop is running.

    Raises:
        TargetError: The target cannot be read, or a keyword could mean an option or an argument of
            the forward.
        ViewError: There is no terminal.

    Example:
        >>> from torch import nn
        >>> explore(nn.Linear(4, 2))  # doctest: +SKIP
    """
    from torchglass.classic.module_explorer import ExplorerConfig

    if inputs or kwargs:
        target = resolve(target)
        foreign = config is not None and not isinstance(config, ExplorerConfig)
        options = {"against": against is not None, "config": foreign, "unsafe": unsafe}
        _refuse_doubtful(target, {name for name, given in options.items() if given})
    return walk_through(target, inputs, kwargs, against=against, config=config, unsafe=unsafe)


def walk_through(
    target: object,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    against: object = None,
    config: ExplorerConfig | None = None,
    unsafe: bool = False,
    tensors: Mapping[tuple[str, int, str], torch.Tensor] | None = None,
) -> Server | None:
    """Explore a target whose forward arguments are passed separately from the options."""
    from torchglass.api.explorer_source import make_source

    if target is None and (inputs or kwargs):
        raise TargetError("the model comes first: tg.explore(model, *inputs)")
    if in_event_loop():
        shown = make_source(target, inputs, kwargs, against=against, unsafe=unsafe)
        if shown.error is not None:
            raise shown.error
        return _open_page(shown.reader)
    if target is not None and not has_terminal():
        raise ViewError(
            "the explorer needs a terminal. Use print(tg.summary(model)), or "
            'tg.view(model, save="model.html") to write a web page.'
        )
    from torchglass.views.tui.app import run_explorer

    if target is None:
        target = _picked()
    if target is not None:
        # The user's own code runs and prints before the screen is taken; reading may take longer.
        found = resolve(target)
        make = partial(
            make_source, found, inputs, kwargs, against=against, unsafe=unsafe, tensors=tensors
        )
        source = make() if inputs or kwargs else make
        run_explorer(source, memory=None if config is None else config.memory())
    return None


def _refuse_doubtful(model: object, options: Collection[str]) -> None:
    """Raise if an option may have been meant for the model's forward."""
    doubtful = sorted(set(options).intersection(_arguments(model)))
    if doubtful:
        raise TargetError(
            f"{doubtful[0]!r} is both an option of explore and an argument of this model's "
            f"forward. Pass it by position, or run the model in `with "
            "tg.record_torch_module_forward_stats(model):` and explore it afterwards."
        )


def _arguments(model: object) -> Collection[str]:
    """The names that a model's forward takes."""
    forward = getattr(model, "forward", model)
    try:
        return inspect.signature(forward).parameters if callable(forward) else ()
    except (TypeError, ValueError):
        return ()


def _open_page(reader: Reader) -> Server:
    from torchglass.api.view import view

    server = view(reader, open_browser=True)
    sys.stderr.write(
        f"torchglass: an event loop is running, so the web page opens instead: {server.url}\n"
    )
    return server


def _picked() -> Path | None:
    """The run or checkpoint in the current folder that the user selects."""
    from torchglass.targets.names import find_targets
    from torchglass.views.tui.windows import pick_file

    found = find_targets(Path.cwd())
    if not found:
        raise TargetError(
            "no runs or checkpoints in this folder. Name a target, such as net.py:Net."
        )
    if not has_terminal():
        names = [str(one.relative_to(Path.cwd())) for one in found[:_FEW]]
        raise ViewError(
            f"selecting a target needs a terminal. Use `torchglass summary {names[0]}`. "
            f"Found: {', '.join(names)}{', …' if len(found) > _FEW else ''}"
        )
    return pick_file(found)
