"""Torchglass turns a PyTorch model into a glass box.

    import torchglass as tg

    print(tg.summary(model, input_size=(1, 3, 224, 224)))   # what it is
    tg.explore(model)                                       # walk through it in the terminal
    tg.view(model)                                          # … or in the browser

Names are imported when they are first used, so `import torchglass` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchglass.api.explore import explore
    from torchglass.api.guard import guard, replay
    from torchglass.api.measure import flops, memory, profile, register_flops, unregister_flops
    from torchglass.api.observe import inspect, record
    from torchglass.api.summary import summary
    from torchglass.api.trace import explain, load, pluck, trace, tracing
    from torchglass.api.view import view
    from torchglass.api.watch import attach, setup, watch
    from torchglass.classic.forward_stats import (
        display_timing_in_explorer,
        explore_torch_module_with_stats,
        get_forward_stats,
        record_torch_module_forward_stats,
    )
    from torchglass.classic.inspector_gadgets import InspectorGadgets
    from torchglass.classic.module_analysis import (
        ModuleInfo,
        analyze_model_async,
        analyze_module,
        analyze_module_detailed,
        extract_model_graph,
        generate_architecture_diagram,
        generate_html_summary,
        generate_json_summary,
        generate_model_summary,
        generate_text_summary,
        get_module_by_path,
        lazy_parameter_analysis,
        plot_network_graph,
    )
    from torchglass.classic.module_explorer import (
        ExplorerConfig,
        analyze_memory_usage,
        explore_model,
        explore_torch_module,
        export_model_summary,
        format_param_count,
        format_shape,
        format_time,
        get_parameter_statistics,
        input_select_file,
        save_text_file,
        select_torch_device,
    )
    from torchglass.classic.torchlens import (
        ModelHistory,
        get_model_metadata,
        log_forward_pass,
        show_model_graph,
        validate_saved_activations,
    )
    from torchglass.errors import TorchglassError, TorchglassWarning
    from torchglass.results.guard import NonFiniteError
    from torchglass.results.inspection import Inspection
    from torchglass.results.trace import Trace

__version__ = "0.1.0"
__all__ = [
    "ExplorerConfig",
    "Inspection",
    "InspectorGadgets",
    "ModelHistory",
    "ModuleInfo",
    "NonFiniteError",
    "TorchglassError",
    "TorchglassWarning",
    "Trace",
    "__version__",
    "analyze_memory_usage",
    "analyze_model_async",
    "analyze_module",
    "analyze_module_detailed",
    "attach",
    "display_timing_in_explorer",
    "explain",
    "explore",
    "explore_model",
    "explore_torch_module",
    "explore_torch_module_with_stats",
    "export_model_summary",
    "extract_model_graph",
    "flops",
    "format_param_count",
    "format_shape",
    "format_time",
    "generate_architecture_diagram",
    "generate_html_summary",
    "generate_json_summary",
    "generate_model_summary",
    "generate_text_summary",
    "get_forward_stats",
    "get_model_metadata",
    "get_module_by_path",
    "get_parameter_statistics",
    "guard",
    "input_select_file",
    "inspect",
    "lazy_parameter_analysis",
    "load",
    "log_forward_pass",
    "memory",
    "plot_network_graph",
    "pluck",
    "profile",
    "record",
    "record_torch_module_forward_stats",
    "register_flops",
    "replay",
    "save_text_file",
    "select_torch_device",
    "setup",
    "show_model_graph",
    "summary",
    "trace",
    "tracing",
    "unregister_flops",
    "validate_saved_activations",
    "view",
    "watch",
]

_HOMES = {
    "torchglass.api.explore": ("explore",),
    "torchglass.api.guard": (
        "guard",
        "replay",
    ),
    "torchglass.api.measure": (
        "flops",
        "memory",
        "profile",
        "register_flops",
        "unregister_flops",
    ),
    "torchglass.api.observe": (
        "inspect",
        "record",
    ),
    "torchglass.api.summary": ("summary",),
    "torchglass.api.trace": (
        "explain",
        "load",
        "pluck",
        "trace",
        "tracing",
    ),
    "torchglass.api.view": ("view",),
    "torchglass.api.watch": (
        "attach",
        "open",
        "setup",
        "watch",
    ),
    "torchglass.classic.forward_stats": (
        "display_timing_in_explorer",
        "explore_torch_module_with_stats",
        "get_forward_stats",
        "record_torch_module_forward_stats",
    ),
    "torchglass.classic.inspector_gadgets": ("InspectorGadgets",),
    "torchglass.classic.module_analysis": (
        "ModuleInfo",
        "analyze_model_async",
        "analyze_module",
        "analyze_module_detailed",
        "extract_model_graph",
        "generate_architecture_diagram",
        "generate_html_summary",
        "generate_json_summary",
        "generate_model_summary",
        "generate_text_summary",
        "get_module_by_path",
        "lazy_parameter_analysis",
        "plot_network_graph",
    ),
    "torchglass.classic.module_explorer": (
        "ExplorerConfig",
        "analyze_memory_usage",
        "explore_model",
        "explore_torch_module",
        "export_model_summary",
        "format_param_count",
        "format_shape",
        "format_time",
        "get_parameter_statistics",
        "input_select_file",
        "save_text_file",
        "select_torch_device",
    ),
    "torchglass.classic.torchlens": (
        "ModelHistory",
        "get_model_metadata",
        "log_forward_pass",
        "show_model_graph",
        "validate_saved_activations",
    ),
    "torchglass.errors": (
        "TorchglassError",
        "TorchglassWarning",
    ),
    "torchglass.results.guard": ("NonFiniteError",),
    "torchglass.results.inspection": ("Inspection",),
    "torchglass.results.trace": ("Trace",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    # Not in `__all__`: with `from torchglass import *` it would replace Python's own.
    from torchglass.api.watch import open as open  # noqa: A004 - as gzip.open is

# Hidden from type checkers, for which a module with it would have every name there is.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'torchglass' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME_OF, *globals()})


def load_ipython_extension(shell: Any) -> None:
    """Add `%explore` to IPython: `%load_ext torchglass`."""
    from torchglass.api.explore import explore
    from torchglass.integrations.jupyter import install

    install(shell, explore)
