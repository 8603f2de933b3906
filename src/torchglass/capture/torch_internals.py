"""Every private part of torch that Torchglass uses, with the reason and what older versions lack.

No other module names a private part of torch; tests/unit/test_torch_internals.py checks it. Most
names here are torch's own functions, not wrappers, because they are called for every op. Whatever
is missing in a version since 2.6 has a fallback here.
"""

from __future__ import annotations

import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch._C import DisableTorchFunction as DisableTorchFunction
from torch._C import DispatchKey
from torch._C._functorch import get_unwrapped as get_unwrapped
from torch._C._functorch import is_batchedtensor as is_batchedtensor
from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped_tensor
from torch._C._functorch import maybe_get_bdim as maybe_get_bdim
from torch._C._functorch import peek_interpreter_stack as peek_interpreter_stack
from torch._functorch.pyfunctorch import (
    temporarily_clear_interpreter_stack as temporarily_clear_interpreter_stack,
)
from torch._library.custom_ops import CustomOpDef as CustomOpDef
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
)
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import (
    UnsupportedFakeTensorException as UnsupportedFakeTensorException,
)
from torch._subclasses.fake_tensor import (
    UnsupportedOperatorException as UnsupportedOperatorException,
)
from torch.autograd import graph
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_map_only as tree_map_only

_C: Any = torch._C
_autograd: Any = torch._C._autograd

# ---- Autograd: torch's public API shows nodes, not when they are created or run.

node_count: Callable[[], int] = _autograd._get_sequence_nr
"""How many autograd nodes this thread has created: the number of the next one."""
node_number: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
"""The number of a node: the value of `node_count` when it was created."""
running_node: Callable[[], Any] = _C._current_autograd_node
"""The node that runs in this thread; None outside of a backward."""
current_backward: Callable[[], int] = _C._current_graph_task_id
"""The number of the backward that runs in this thread; -1 outside of one."""
queue_callback: Callable[[Callable[[], None]], None]
queue_callback = torch.autograd.Variable._execution_engine.queue_callback
"""Calls a function when the running backward has ended."""
FunctionNode: type = _C._FunctionBase
"""The class of the nodes of `torch.autograd.Function`."""
BACKWARD_CODE: types.CodeType = graph._engine_run_backward.__code__
"""The last Python frame before autograd takes over."""
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
"""`torch.set_grad_enabled` as a plain function, which no interrupt can leave half done."""
SAVED_PREFIX = "_saved_"
"""The prefix of the attributes in which a node shows the tensors it saved."""


def _frames_of_all_threads() -> Iterator[types.FrameType]:
    yield from sys._current_frames().values()


def roots_of_backward() -> tuple[Any, ...]:
    """The nodes at which the running backward begins, such as that of the loss.

    On an accelerator another thread runs the hooks, so the frames of all threads are searched. Its
    own come first: Python may hand out a frame of a busy thread that is gone already.
    """
    for frame in chain([sys._getframe()], _frames_of_all_threads()):
        outer: types.FrameType | None = frame
        while outer is not None:
            if outer.f_code is BACKWARD_CODE:
                tensors = outer.f_locals.get("t_outputs", ())
                return tuple(one.grad_fn for one in tensors if getattr(one, "grad_fn", None))
            outer = outer.f_back
    return ()


def threads_in_backward() -> list[int]:
    """The threads that wait for a backward; on an accelerator other threads run it."""
    frames = sys._current_frames().items()
    return [thread for thread, frame in frames if frame.f_code is BACKWARD_CODE]


def gradient_shape(node: Any) -> tuple[int, ...] | None:
    """The shape of the first gradient that a node receives; None if unknown."""
    metadata = getattr(node, "_input_metadata", None)
    return tuple(metadata[0].shape) if metadata else None


def softmax_dim(node: Any) -> int | None:
    """The dimension of the softmax or log_softmax of a node, from 0; None for another node."""
    dim, shape = getattr(node, f"{SAVED_PREFIX}dim", None), gradient_shape(node)
    if "Softmax" not in type(node).__name__ or not isinstance(dim, int) or not shape:
        return None
    # Autograd shows a negative one as an unsigned number.
    return (dim - 2**64 if dim >= 2**63 else dim) % len(shape)


def add_gradient_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """A faster `tensor.register_hook` for tensors that are not leaves. It returns no handle.

    The hook is freed with the graph.
    """
    owner: Any = tensor
    if owner._backward_hooks is None:
        owner._backward_hooks = OrderedDict()
        owner.grad_fn._register_hook_dict(owner)
    owner._backward_hooks[hook] = hook


def has_saved_tensor_hooks() -> bool:
    """Whether hooks, such as those of a checkpoint, receive the tensors that ops save now."""
    if hasattr(_autograd, "_top_saved_tensors_default_hooks"):
        return _autograd._top_saved_tensors_default_hooks(False) is not None
    # torch 2.6 does not show the hooks, but refuses to disable them while some are set.
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    try:
        _autograd._saved_tensors_hooks_disable("saved tensor hooks are set")
    except RuntimeError:
        return True
    finally:
        _autograd._saved_tensors_hooks_enable()
    return False


def accumulated_gradient_hooks(tensor: torch.Tensor) -> dict[int, Any] | None:
    """The hooks that run when a leaf has its gradient, by number: optimizers may step there."""
    hooks: dict[int, Any] | None = tensor._post_accumulate_grad_hooks
    return hooks


# ---- Modes: torch can push and pop only the top one, and Ctrl-C may leave one of ours there.

function_mode_count: Callable[[], int] = _C._len_torch_function_stack
"""How many function modes are active in this thread."""
function_mode_at: Callable[[int], Any] = _C._get_function_stack_at
push_function_mode: Callable[[Any], None] = _C._push_on_torch_function_stack
pop_function_mode: Callable[[], Any] = _C._pop_torch_function_stack
dispatch_mode_count: Callable[[], int] = _C._len_torch_dispatch_stack
"""How many dispatch modes are active in this thread."""
dispatch_modes: Callable[[], list[Any]] = _python_dispatch._get_current_dispatch_mode_stack
push_dispatch_mode: Callable[[Any], None] = _python_dispatch._push_mode
pop_dispatch_mode: Callable[[], Any] = _python_dispatch._pop_mode
disable_current_modes = _python_dispatch._disable_current_modes
"""A with-block without any dispatch mode."""
DISABLED_TORCH_FUNCTION: Any = _C._disabled_torch_function_impl
"""The `__torch_function__` of a tensor class that overrides nothing."""
any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
"""Whether autocast is on for any device: one call for every op instead of one per device."""
tracing_state: Callable[[], Any] = _C._get_tracing_state
"""Not None while `torch.jit.trace` records."""
DYNAMO = "torch._dynamo"
"""Where this module is not imported nothing is compiled; importing it takes a second."""
FORWARD_CODE: types.CodeType = nn.Module._call_impl.__code__
"""The frame that runs a module's hooks and its forward."""


DYNAMO_COPIES_OF_CALL = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
"""The modules that copy `nn.Module.__call__` when they are imported, and compare with the copy."""


def keep_from_dynamo(code: types.CodeType) -> None:
    """Keep dynamo from compiling a function that compiled code calls."""
    from torch._C._dynamo import eval_frame

    # Since torch 2.7. Earlier versions have no such setting and compile the function: slower, with
    # the same result.
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))


def let_modes_see_higher_order_ops(mode: type[TorchDispatchMode]) -> None:
    """Show higher-order ops, such as `torch.cond`, to a dispatch mode like other ops."""
    if "supports_higher_order_operators" in vars(TorchDispatchMode):
        return
    # Before torch 2.7 each op needs a rule for each class of modes, or raises.
    ops: Any = torch._ops
    for op in list(ops._higher_order_ops.values()):
        if mode not in op.python_key_table:
            op.py_impl(mode)(partial(_dispatch, op))


def _dispatch(op: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(op, (), args, kwargs)


# ---- Ops: which kernels an op has, and what it is called.

COMPOSITE = DispatchKey.CompositeImplicitAutograd
"""The dispatch key of ops that are implemented in terms of others."""
has_kernel: Callable[[str], bool] = _C._dispatch_has_kernel
dispatch_key_of_device: Callable[[str], Any] = _C._dispatch_key_for_device


with_dispatch_key: Callable[[Any], Callable[..., Any]] = operator.attrgetter("_op_dk")
"""The function of an op that runs it at a dispatch key, its first argument."""


@lru_cache(maxsize=4096)
def has_kernel_for(op: Any, key: Any) -> bool:
    """Whether an op has its own kernel at a dispatch key."""
    try:
        return bool(_C._dispatch_has_kernel_for_dispatch_key(op.name(), key))
    except RuntimeError:
        # Reading a tensor's size also arrives here as an op, but no such op exists.
        return False


def first_overload(packet: OpOverloadPacket[..., Any]) -> OpOverload[..., Any]:
    """The first of an op's overloads."""
    overload: OpOverload[..., Any] = getattr(packet, packet._overload_names[0])
    return overload


def qualified_name(op: CustomOpDef | OpOverloadPacket[..., Any]) -> str:
    """The name of an op with its namespace: "mylib::mix"."""
    return str(op._qualname if isinstance(op, CustomOpDef) else op._qualified_op_name)


foreach_norm: Callable[..., tuple[torch.Tensor, ...]] = torch._foreach_norm
"""The norms of many tensors in one kernel."""
foreach_sub: Callable[..., tuple[torch.Tensor, ...]] = torch._foreach_sub
"""The differences of many pairs of tensors in one kernel."""
foreach_devices: Callable[[], list[str]] = (
    torch.utils._foreach_utils._get_foreach_kernels_supported_devices
)
"""The types of devices on which optimizers update all parameters of a group at once."""
foreach_copy: Callable[..., None] = torch._foreach_copy_
"""Copies many tensors into others in one kernel."""
foreach_add: Callable[..., tuple[torch.Tensor, ...]] = torch._foreach_add
"""The sums of many tensors and a number in one kernel."""

# ---- Tensors and storages.

data_address: Callable[[torch.Tensor], int]
data_address = getattr(torch.Tensor, "const_data_ptr", torch.Tensor.data_ptr)
"""Where the first value of a tensor is; unlike `data_ptr` it leaves a lazy clone lazy."""
flatten_dense_tensors: Callable[[list[torch.Tensor]], torch.Tensor]
flatten_dense_tensors = torch._utils._flatten_dense_tensors
"""All values of tensors of one dtype in one row; thousands of small tensors take one call."""

storage_address: Callable[[Any], int] = operator.attrgetter("_cdata")
"""The address of a storage object, which exists even if no memory is allocated."""
make_quantized: Callable[..., torch.Tensor] = torch._make_per_tensor_quantized_tensor
"""A quantized tensor from its integers, scale and zero point."""


def reference_counts(tensor: Any) -> tuple[int, int]:
    """How many references torch has to a tensor, and to its storage."""
    storage = _C._storage_Use_Count(storage_address(tensor.untyped_storage()))
    return tensor._use_count(), storage


def nested_sizes(tensor: Any) -> list[tuple[int, ...]]:
    """The shapes of the parts of a nested tensor in strided layout."""
    return [tuple(shape) for shape in tensor._nested_tensor_size().tolist()]


def exported_dtypes() -> dict[int, torch.dtype]:
    """The dtypes by their numbers in a .pt2 file."""
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    dtypes: dict[int, torch.dtype] = _SERIALIZE_TO_TORCH_DTYPE
    return dtypes


# ---- Modules.

HOOK_TABLES = {
    "_forward_pre_hooks": "forward_pre",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "backward_pre",
    "_backward_hooks": "backward",
    "_state_dict_pre_hooks": "state_dict_pre",
    "_state_dict_hooks": "state_dict",
    "_load_state_dict_pre_hooks": "load_state_dict_pre",
    "_load_state_dict_post_hooks": "load_state_dict_post",
}
"""The attributes in which a module keeps its hooks, and our names for them."""
OPTIMIZER_HOOK_TABLES = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled, by `torch.compile` or `module.compile`."""
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or module.__dict__.get("_compiled_call_impl") is not None


def replace_flat_weights(
    module: nn.RNNBase, replace: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Replace the weights of a recurrent module in the list through which its forward uses them."""
    weights: Any = module._flat_weights
    vars(module)["_flat_weights"] = [replace(weight) for weight in weights]


def script_type(thing: Any) -> Any:
    """The TorchScript type of a scripted module or object."""
    compiled = vars(thing)["_c"] if isinstance(thing, torch.jit.ScriptModule) else thing
    return compiled._type()


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether FSDP, of either version, gathers the weights of some of the modules."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return False
    kinds = tuple(
        kind
        for name in ("FSDPModule", "FullyShardedDataParallel")
        if (kind := getattr(fsdp, name, None)) is not None
    )
    return any(isinstance(module, kinds) for module in modules)


class ShardedParameters:
    """Whether the weights of modules under `fully_shard` are sharded or gathered, to restore it.

    A forward without a backward leaves the weights of the root gathered, and one that raises leaves
    FSDP in the middle of a pass.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        states = {id(state): state for state in map(_fsdp_state, modules) if state is not None}
        self._states = [
            (state, state._training_state, state._state_ctx.iter_forward_root)
            for state in states.values()
        ]
        self._groups = [
            (group, group._training_state, group._sharded_state)
            for state in states.values()
            for group in _fsdp_groups(state)
        ]

    def restore(self) -> None:
        for state, training_state, root in self._states:
            state._training_state = training_state
            state._state_ctx.iter_forward_root = root
        for group, training_state, sharded_state in self._groups:
            group._training_state = training_state
            if group._all_gather_result is not None:
                group.wait_for_unshard()
            if group._sharded_state is not sharded_state:
                group.unshard() if sharded_state.name == "UNSHARDED" else group._to_sharded()
                group.wait_for_unshard()


def _fsdp_state(module: nn.Module) -> Any:
    """The state that `fully_shard` keeps for a module; None if it is not sharded."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(module, getattr(fsdp, "FSDPModule", ())):
        return None
    return module._get_fsdp_state()  # type: ignore[operator]


def _fsdp_groups(state: Any) -> list[Any]:
    """The groups of weights that are gathered together; older versions of torch have one."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


# ---- Training and measuring.


def current_scale(scaler: Any) -> torch.Tensor | None:
    """The scale of a `GradScaler`; None before it has scaled anything."""
    scale: torch.Tensor | None = scaler._scale
    return scale


def has_served(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a `GradScaler` unscaled or stepped an optimizer since its last update."""
    return id(optimizer) in scaler._per_optimizer_states


def default_store() -> Any:
    """The key-value store of the default process group."""
    return torch.distributed.distributed_c10d._get_default_store()


def start_allocation_reports() -> bool:
    """Have torch's CPU allocator report every block; False if a profiler is already running."""
    if not hasattr(_autograd, "_enable_profiler_legacy") or _autograd._profiler_enabled():
        return False
    profiler: Any = _C._profiler
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.CPU,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # FLOPs
        False,  # modules
        profiler._ExperimentalConfig(),
    )
    _autograd._enable_profiler_legacy(config)
    return True


def stop_allocation_reports() -> Iterator[Any]:
    """The events of the run, thread by thread."""
    for events in _autograd._disable_profiler_legacy():
        yield from events
