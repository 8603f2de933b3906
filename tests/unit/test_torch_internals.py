"""Private parts of torch are used in one module alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchglass
from torchglass.capture.torch_internals import OpOverload, has_saved_tensor_hooks

ROOT = Path(torchglass.__file__).parent
PLACE = ROOT / "capture" / "torch_internals.py"
FILES = sorted(set(ROOT.rglob("*.py")) - {PLACE})

PROTOCOL = {
    # How torch's own documentation and most libraries reach them; there is no other way.
    *("_parameters", "_buffers", "_modules"),
    *("_version", "_base", "_is_view"),
    *("_indices", "_values", "_nnz"),
    "_schema",
}
ALLOWED_STRINGS = {
    "torch._C._nn": "the module in which users find functions such as gelu",
    "torch._subclasses.fake_tensor": "the name of a logger, in a module that does not import torch",
}
OBJECTS_OF_TORCH = (
    torch.Tensor,
    nn.Module(),
    nn.LSTM,
    OpOverload,
    torch._ops.OpOverloadPacket,
    torch.optim.Optimizer,
    torch.amp.GradScaler("cpu"),
    torch.UntypedStorage,
    torch.jit.ScriptModule,
    torch.ones(1, requires_grad=True).exp().grad_fn,
)
NAMES_OF_TORCH = {name for thing in OBJECTS_OF_TORCH for name in dir(thing)} - PROTOCOL


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _private_parts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [] if node.value in ALLOWED_STRINGS else [node.value]
        elif isinstance(node, ast.Attribute):
            names = [_dotted(node)]
            if _dotted(node.value) not in {"self", "cls"} and node.attr in NAMES_OF_TORCH:
                names = [f"torch.{node.attr}"]
        for name in names:
            first, *parts = name.split(".")
            if first == "torch" and any(map(_is_private, parts)) and " " not in name:
                yield name


@pytest.mark.slow
def test_only_torch_internals_uses_private_torch_apis() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
    found = {str(file.relative_to(ROOT)): [*_private_parts(tree)] for file, tree in trees.items()}
    assert {file: parts for file, parts in found.items() if parts} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "from torch._C import DispatchKey",
        "from torch.utils import _pytree",
        "torch._C._autograd",
        "node._sequence_nr()",
        "scaler._scale",
        "'torch._dynamo' in sys.modules",
    ],
)
def test_the_check_finds_private_parts(code: str) -> None:
    assert list(_private_parts(ast.parse(code)))


def test_saved_tensor_hooks_are_detected() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        seen.append(has_saved_tensor_hooks())
        return x.exp()

    checkpoint(forward, x, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        seen.append(has_saved_tensor_hooks())
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        seen.append(has_saved_tensor_hooks())
    assert [*seen, has_saved_tensor_hooks()] == [True, True, False, False]


def test_saved_tensor_hooks_are_detected_without_torchs_private_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks", raising=False)
    test_saved_tensor_hooks_are_detected()
