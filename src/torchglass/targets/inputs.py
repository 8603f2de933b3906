"""Model inputs as written on the command line.

1x3x224x224         random values of that shape, on the model's device and in its dtype
2x16:long           zeros, which are valid indices of every embedding
scalar              one value, without dimensions
mask=2x16:bool      the argument named mask
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchglass.errors import TargetError
from torchglass.targets.names import near, resolve

if TYPE_CHECKING:
    import torch

_ALIASES = {
    **{f"{short}{bits}": f"float{bits}" for short in ("f", "fp") for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "u8": "uint8",
}
_LIKE = "Use 1x3x224x224, 2x16:long or mask=2x16:bool."


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A tensor to run a model on, described by its shape and dtype."""

    shape: tuple[int, ...]
    dtype: str = ""
    """torch's dtype name; "" for the dtype of the model."""
    name: str = ""
    """The name of the forward argument; "" for the next positional one."""


def parse_input(text: str) -> InputSpec:
    """The tensor that a text such as "1x3x224x224:half" describes."""
    name, _, rest = text.rpartition("=")
    sizes, colon, dtype = rest.partition(":")
    if name and not name.isidentifier():
        raise TargetError(f"--input {text!r}: {name!r} is not an argument name. {_LIKE}")
    if colon and not dtype:
        raise TargetError(f"--input {text!r}: the dtype after ':' is missing. {_LIKE}")
    return InputSpec(
        shape=_shape(sizes, text), dtype=_dtype(dtype, text) if dtype else "", name=name
    )


def ready_to_run(
    target: object, texts: Iterable[str], *, fake: bool = False, without_values: bool = False
) -> tuple[object, list[Any], dict[str, Any]]:
    """The live model of a target, and the arguments of its forward.

    With `without_values` the model is created on "meta", where it takes no memory.
    """
    with _on_meta() if without_values else contextlib.nullcontext():
        model = resolve(target)
    if isinstance(model, Path):
        raise TargetError(
            f"{model} cannot run: it is a file without the code of the model. "
            "Name the code, such as net.py:Net."
        )
    return model, *make_inputs(texts, model, fake=fake)


def _on_meta() -> contextlib.AbstractContextManager[Any]:
    import torch

    return torch.device("meta")


def make_inputs(
    texts: Iterable[str], model: object, *, fake: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments of a model's forward, as tensors.

    With `fake` they take no memory.
    """
    specs = [parse_input(text) for text in texts]
    if not specs:
        return [], {}
    for name, count in Counter(spec.name for spec in specs if spec.name).items():
        if count > 1:
            raise TargetError(f"--input {name}=… is given twice. Pass one input per argument.")
    import torch

    device, dtype = _home(model)
    if fake and device.type == "cpu":
        device = torch.device("meta")
    made = [(spec.name, _made(spec, dtype, device)) for spec in specs]
    named = {name: tensor for name, tensor in made if name}
    return [tensor for name, tensor in made if not name], named


def _made(spec: InputSpec, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    import torch

    from torchglass.capture.model_inputs import make_tensor

    kind = getattr(torch, spec.dtype) if spec.dtype else dtype
    try:
        return make_tensor(spec.shape, kind, device)
    except RuntimeError as error:
        size, reason = "x".join(map(str, spec.shape)), str(error).partition("\n")[0]
        raise TargetError(f"cannot create an input of {size}: {reason}") from error


def _home(model: object) -> tuple[torch.device, torch.dtype]:
    """The device and dtype of a model."""
    import torch

    tensors = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    device = next((tensor.device for tensor in tensors), torch.get_default_device())
    floats = (tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point)
    return device, next(floats, torch.get_default_dtype())


def _shape(sizes: str, text: str) -> tuple[int, ...]:
    if sizes == "scalar":
        return ()
    parts = re.split(r"[x×,]", sizes)
    if not all(part.isdecimal() for part in parts):
        raise TargetError(f"--input {text!r} is not a shape. {_LIKE}")
    return tuple(map(int, parts))


def _dtype(name: str, text: str) -> str:
    """torch's name of a dtype: "long" is "int64"."""
    import torch

    name = name.removeprefix("torch.")
    dtype = getattr(torch, _ALIASES.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        known = [other for other in dir(torch) if isinstance(getattr(torch, other), torch.dtype)]
        raise TargetError(f"--input {text!r}: torch has no dtype {name!r}{near(name, known)}")
    return str(dtype).removeprefix("torch.")
