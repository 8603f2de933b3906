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
    from torchglass.analyse.accelerators import Accelerator as Accelerator
    from torchglass.analyse.diagnosis.rule import rule as rule
    from torchglass.api.compare import compare as compare
    from torchglass.api.diagnose import diagnose as diagnose
    from torchglass.api.experiment import pruning as pruning
    from torchglass.api.experiment import quantization as quantization
    from torchglass.api.explore import explore as explore
    from torchglass.api.guard import guard as guard
    from torchglass.api.guard import replay as replay
    from torchglass.api.measure import flops as flops
    from torchglass.api.measure import inspect as inspect
    from torchglass.api.measure import memory as memory
    from torchglass.api.measure import profile as profile
    from torchglass.api.measure import record as record
    from torchglass.api.measure import register_flops as register_flops
    from torchglass.api.measure import unregister_flops as unregister_flops
    from torchglass.api.plan import batch_size as batch_size
    from torchglass.api.plan import estimate as estimate
    from torchglass.api.runs import query as query
    from torchglass.api.runs import runs as runs
    from torchglass.api.summary import summary as summary
    from torchglass.api.trace import diagram as diagram
    from torchglass.api.trace import explain as explain
    from torchglass.api.trace import load as load
    from torchglass.api.trace import pluck as pluck
    from torchglass.api.trace import trace as trace
    from torchglass.api.trace import tracing as tracing
    from torchglass.api.view import view as view
    from torchglass.api.watch import attach as attach
    from torchglass.api.watch import open as open  # noqa: A004 - as gzip.open is
    from torchglass.api.watch import setup as setup
    from torchglass.api.watch import watch as watch
    from torchglass.classic.inspector_gadgets import InspectorGadgets as InspectorGadgets
    from torchglass.classic.module_analysis import ModuleInfo as ModuleInfo
    from torchglass.classic.module_analysis import analyze_model_async as analyze_model_async
    from torchglass.classic.module_analysis import analyze_module as analyze_module
    from torchglass.classic.module_analysis import (
        analyze_module_detailed as analyze_module_detailed,
    )
    from torchglass.classic.module_analysis import extract_model_graph as extract_model_graph
    from torchglass.classic.module_analysis import (
        generate_architecture_diagram as generate_architecture_diagram,
    )
    from torchglass.classic.module_analysis import generate_html_summary as generate_html_summary
    from torchglass.classic.module_analysis import generate_json_summary as generate_json_summary
    from torchglass.classic.module_analysis import generate_model_summary as generate_model_summary
    from torchglass.classic.module_analysis import generate_text_summary as generate_text_summary
    from torchglass.classic.module_analysis import get_module_by_path as get_module_by_path
    from torchglass.classic.module_analysis import (
        lazy_parameter_analysis as lazy_parameter_analysis,
    )
    from torchglass.classic.module_analysis import plot_network_graph as plot_network_graph
    from torchglass.classic.module_explorer import ExplorerConfig as ExplorerConfig
    from torchglass.classic.module_explorer import analyze_memory_usage as analyze_memory_usage
    from torchglass.classic.module_explorer import (
        display_timing_in_explorer as display_timing_in_explorer,
    )
    from torchglass.classic.module_explorer import explore_model as explore_model
    from torchglass.classic.module_explorer import explore_torch_module as explore_torch_module
    from torchglass.classic.module_explorer import (
        explore_torch_module_with_stats as explore_torch_module_with_stats,
    )
    from torchglass.classic.module_explorer import export_model_summary as export_model_summary
    from torchglass.classic.module_explorer import format_param_count as format_param_count
    from torchglass.classic.module_explorer import format_shape as format_shape
    from torchglass.classic.module_explorer import format_time as format_time
    from torchglass.classic.module_explorer import get_forward_stats as get_forward_stats
    from torchglass.classic.module_explorer import (
        get_parameter_statistics as get_parameter_statistics,
    )
    from torchglass.classic.module_explorer import input_select_file as input_select_file
    from torchglass.classic.module_explorer import (
        record_torch_module_forward_stats as record_torch_module_forward_stats,
    )
    from torchglass.classic.module_explorer import save_text_file as save_text_file
    from torchglass.classic.module_explorer import select_torch_device as select_torch_device
    from torchglass.classic.torchlens import ModelHistory as ModelHistory
    from torchglass.classic.torchlens import get_model_metadata as get_model_metadata
    from torchglass.classic.torchlens import log_forward_pass as log_forward_pass
    from torchglass.classic.torchlens import show_model_graph as show_model_graph
    from torchglass.classic.torchlens import (
        validate_saved_activations as validate_saved_activations,
    )
    from torchglass.errors import TorchglassError as TorchglassError
    from torchglass.errors import TorchglassWarning as TorchglassWarning
    from torchglass.errors import TrainingStoppedError as TrainingStoppedError
    from torchglass.records.findings import Finding as Finding
    from torchglass.results.comparison import Comparison as Comparison
    from torchglass.results.diagnosis import Diagnosis as Diagnosis
    from torchglass.results.failures import NonFiniteError as NonFiniteError
    from torchglass.results.inspection import Inspection as Inspection
    from torchglass.results.trace import Trace as Trace

__version__ = "0.1.0"

_HOMES = {
    "analyse.accelerators": "Accelerator",
    "analyse.diagnosis.rule": "rule",
    "api.compare": "compare",
    "api.diagnose": "diagnose",
    "api.experiment": "pruning quantization",
    "api.explore": "explore",
    "api.guard": "guard replay",
    "api.measure": "flops inspect memory profile record register_flops unregister_flops",
    "api.plan": "batch_size estimate",
    "api.runs": "query runs",
    "api.summary": "summary",
    "api.trace": "diagram explain load pluck trace tracing",
    "api.view": "view",
    "api.watch": "attach open setup watch",
    "classic.inspector_gadgets": "InspectorGadgets",
    "classic.module_analysis": (
        "ModuleInfo analyze_model_async analyze_module analyze_module_detailed "
        "extract_model_graph generate_architecture_diagram generate_html_summary "
        "generate_json_summary generate_model_summary generate_text_summary get_module_by_path "
        "lazy_parameter_analysis plot_network_graph"
    ),
    "classic.module_explorer": (
        "ExplorerConfig analyze_memory_usage display_timing_in_explorer explore_model "
        "explore_torch_module explore_torch_module_with_stats export_model_summary "
        "format_param_count format_shape format_time get_forward_stats "
        "get_parameter_statistics input_select_file record_torch_module_forward_stats "
        "save_text_file select_torch_device"
    ),
    "classic.torchlens": (
        "ModelHistory get_model_metadata log_forward_pass show_model_graph "
        "validate_saved_activations"
    ),
    "errors": "TorchglassError TorchglassWarning TrainingStoppedError",
    "records.findings": "Finding",
    "results.comparison": "Comparison",
    "results.diagnosis": "Diagnosis",
    "results.failures": "NonFiniteError",
    "results.inspection": "Inspection",
    "results.trace": "Trace",
}
"""The public names by the module that has them."""
_HOME_OF = {name: f"torchglass.{home}" for home, names in _HOMES.items() for name in names.split()}
# With `from torchglass import *`, `open` would replace Python's own.
_STAR_NAMES = sorted({"__version__", *_HOME_OF} - {"open"})
__all__ = list(_STAR_NAMES)

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
