"""The names of TorchLens."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchglass.api.trace import trace_forward
from torchglass.errors import ViewError
from torchglass.results.trace import Trace
from torchglass.tables.export import without_ending

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchglass.capture.trace.assemble import Selection
    from torchglass.views.graph.layout import Direction

ModelHistory = Trace

VisOpt = Literal["none", "rolled", "unrolled"]
Attributes = Mapping[str, Any] | None
"""Graphviz attributes: values, or functions of the history and a node."""

PICTURE_ENDINGS = ("bmp", "dot", "gif", "jpeg", "jpg", "pdf", "png", "ps", "svg", "tif", "tiff")
"""Endings that are removed from the path of a picture before its format is added."""

_DIRECTIONS: dict[str, Direction] = {"bottomup": "up", "topdown": "down", "leftright": "right"}


def log_forward_pass(  # noqa: PLR0913, PLR0917 - this is how its users call it
    model: nn.Module,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None = None,
    layers_to_save: Selection = "all",
    keep_unsaved_layers: bool = True,
    output_device: str = "same",
    activation_postfunc: Callable[[torch.Tensor], torch.Tensor] | None = None,
    mark_input_output_distances: bool = False,
    detach_saved_tensors: bool = False,
    save_function_args: bool = False,
    save_gradients: bool = False,
    vis_opt: VisOpt = "none",
    vis_nesting_depth: int = 1000,
    vis_outpath: str = "graph.gv",
    vis_save_only: bool = False,
    vis_fileformat: str = "pdf",
    vis_buffer_layers: bool = False,
    vis_direction: str = "bottomup",
    vis_graph_overrides: Attributes = None,
    vis_node_overrides: Attributes = None,
    vis_nested_node_overrides: Attributes = None,
    vis_edge_overrides: Attributes = None,
    vis_gradient_edge_overrides: Attributes = None,
    vis_module_overrides: Attributes = None,
    random_seed: int | None = None,
) -> Trace:
    """Run a model once and record every op. TorchLens' name for `trace`.

    Your random state is unchanged. Distances from input and output and the arguments of functions
    are always recorded.

    Args:
        model: The model to run.
        input_args: Arguments of the forward: a list or tuple of all of them, or the only one.
        input_kwargs: Keyword arguments of the forward.
        layers_to_save: Which outputs to keep, as `save` of `trace`.
        keep_unsaved_layers: Also list layers whose tensors were not kept.
        output_device: Device that kept tensors are moved to. "same" leaves them.
        activation_postfunc: Applied to each tensor before it is kept.
        mark_input_output_distances: Accepted for TorchLens; distances are always there.
        detach_saved_tensors: Keep tensors detached from the graph.
        save_function_args: Accepted for TorchLens; arguments are always there.
        save_gradients: Also collect gradients when you run a backward later.
        vis_opt: Draw the graph: "none", "rolled" (loops as one node) or "unrolled".
        vis_nesting_depth: Number of module levels that are drawn open.
        vis_outpath: Path of the drawing.
        vis_save_only: Do not open the drawing.
        vis_fileformat: Format of the drawing: "pdf", "svg", "png", …
        vis_buffer_layers: Draw buffers.
        vis_direction: "bottomup", "topdown" or "leftright".
        vis_graph_overrides: Graphviz attributes of the graph: values, or functions of the history.
        vis_node_overrides: The same for nodes.
        vis_nested_node_overrides: The same for collapsed modules.
        vis_edge_overrides: The same for edges.
        vis_gradient_edge_overrides: Accepted for TorchLens; gradient edges are not drawn.
        vis_module_overrides: The same for module boxes.
        random_seed: Seed of the pass. None: a random one, in `history.random_seed`.

    Returns:
        A `Trace` (TorchLens: `ModelHistory`).

    Raises:
        ViewError: A `vis_…` option is not allowed.
        LookupFailedError: A name in `layers_to_save` does not match any op.

    Example:
        >>> import torch
        >>> history = log_forward_pass(torch.nn.ReLU(), torch.ones(2), layers_to_save=["relu"])
        >>> history["relu_1_1"].tensor_contents
        tensor([1., 1.])
    """
    if vis_opt not in ("none", "rolled", "unrolled"):
        raise ViewError(f"vis_opt must be 'none', 'rolled' or 'unrolled', not {vis_opt!r}")
    seed = secrets.randbelow(2**32) if random_seed is None else random_seed
    with _seeded(seed):
        history = trace_forward(
            model,
            _arguments(input_args),
            input_kwargs or {},
            save=layers_to_save,
            gradients=save_gradients,
            change=_changing(output_device, activation_postfunc, detach_saved_tensors),
            offload=output_device == "cpu",
        )
    history.random_seed = seed
    if not keep_unsaved_layers:
        history.list_saved_only()
    if vis_opt != "none":
        from torchglass.views.graph.style import Overrides

        path = _picture_file(vis_outpath, vis_fileformat)
        history.draw(
            path,
            mode=vis_opt,
            depth=vis_nesting_depth,
            direction=_direction(vis_direction),
            show_buffers=vis_buffer_layers,
            overrides=Overrides(
                graph=_told_of(history, vis_graph_overrides),
                node=_told_of(history, vis_node_overrides),
                module=_told_of(history, vis_nested_node_overrides),
                edge=_told_of(history, vis_edge_overrides),
                box=_told_of(history, vis_module_overrides),
            ),
        )
        if not vis_save_only:
            _show(path)
    return history


def get_model_metadata(
    model: nn.Module, input_args: Any, input_kwargs: Mapping[str, Any] | None = None
) -> Trace:
    """Record a forward without its tensors.

    Args:
        model: The model to run.
        input_args: Arguments of the forward: a list or tuple of all of them, or the only one.
        input_kwargs: Keyword arguments of the forward.

    Returns:
        A `Trace`.

    Example:
        >>> import torch
        >>> get_model_metadata(torch.nn.ReLU(), torch.ones(2))["relu"].tensor_contents is None
        True
    """
    return log_forward_pass(model, input_args, input_kwargs, layers_to_save=None)


def show_model_graph(
    model: nn.Module,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None = None,
    vis_opt: VisOpt = "unrolled",
    *,
    save_only: bool = False,
    **options: Any,
) -> None:
    """Draw the ops of a forward into a file.

    Args:
        model: The model to run.
        input_args: Arguments of the forward: a list or tuple of all of them, or the only one.
        input_kwargs: Keyword arguments of the forward.
        vis_opt: "rolled" (loops as one node) or "unrolled".
        save_only: Do not open the drawing.
        **options: The other `vis_…` options of `log_forward_pass`.

    Raises:
        ViewError: A `vis_…` option is not allowed, or Graphviz is not installed.

    Example:
        >>> import os, torch
        >>> show_model_graph(
        ...     torch.nn.ReLU(),
        ...     torch.ones(2),
        ...     save_only=True,
        ...     vis_outpath="relu",
        ...     vis_fileformat="svg",
        ... )
        >>> os.path.exists("relu.svg")
        True
    """
    log_forward_pass(
        model,
        input_args,
        input_kwargs,
        layers_to_save=None,
        vis_opt=vis_opt,
        vis_save_only=save_only,
        **options,
    )


def validate_saved_activations(
    model: nn.Module,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    verbose: bool = False,
) -> bool:
    """Check that replaying each op of a forward reproduces what was recorded.

    Args:
        model: The model to run.
        input_args: Arguments of the forward: a list or tuple of all of them, or the only one.
        input_kwargs: Keyword arguments of the forward.
        random_seed: Seed of the pass. None: a random one.
        verbose: Also log the result.

    Returns:
        True if every op was reproduced.

    Example:
        >>> import torch
        >>> validate_saved_activations(torch.nn.ReLU(), torch.ones(2))
        True
    """
    history = log_forward_pass(model, input_args, input_kwargs, random_seed=random_seed)
    validation = history.validate()
    if verbose:
        import logging

        logging.getLogger("torchglass").warning("%s", validation)
    return bool(validation)


def _arguments(input_args: Any) -> tuple[Any, ...]:
    if input_args is None:
        return ()
    return tuple(input_args) if isinstance(input_args, (list, tuple)) else (input_args,)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import random

    import numpy as np
    import torch

    from torchglass.capture.isolated_run import keeping_random_state

    with keeping_random_state():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield


def _changing(
    device: str, postfunc: Callable[[torch.Tensor], torch.Tensor] | None, detach: bool
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function applied to each saved tensor; None if there is nothing to do."""
    if device == "same" and postfunc is None and not detach:
        return None

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if detach:
            tensor = tensor.detach()
        if device != "same":
            tensor = tensor.to(device)
        return tensor if postfunc is None else postfunc(tensor)

    return change


def _told_of(history: Trace, attributes: Attributes) -> dict[str, Any]:
    """Graphviz attributes, whose functions of history and node become functions of the node."""
    return {
        name: partial(value, history) if callable(value) else value
        for name, value in (attributes or {}).items()
    }


def _picture_file(path: str, format: str) -> Path:
    """The path of a picture; a name such as "lr0.1" keeps its dots."""
    start = without_ending(path, "gv", format, *PICTURE_ENDINGS)
    return start.with_name(f"{start.name}.{format}")


def _direction(name: str) -> Direction:
    if name not in _DIRECTIONS:
        raise ViewError(f"vis_direction must be one of {', '.join(_DIRECTIONS)}, not {name!r}")
    return _DIRECTIONS[name]


def _show(path: Path) -> None:
    """Open a picture, if there is a screen."""
    import os
    import sys
    import webbrowser

    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(path.absolute().as_uri())
