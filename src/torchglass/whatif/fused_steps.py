"""What a fused op computes, step by step: attention as products, a mask and a softmax.

A port may spell out what the other model calls as one function. The steps of that function, run
on the same operands, can be compared with it one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from torchglass.analyse.signatures import plain_name
from torchglass.capture.tensor.description import iter_tensors

Given = Mapping[str, Any]
_VIEWS = frozenset({"transpose", "t", "view", "reshape", "flatten", "chunk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """One op inside of a fused one."""

    function: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[torch.Tensor, ...]

    @property
    def is_layout(self) -> bool:
        """Whether it only changes the view of a tensor."""
        return self.function in _VIEWS

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it read."""
        return list(iter_tensors((self.args, dict(self.kwargs))))


class _StepRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[FusedStep] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = tuple(iter_tensors(result))
        if tensors:
            name = plain_name(getattr(func, "__name__", ""))
            self.steps.append(
                FusedStep(function=name, run=func, args=args, kwargs=kwargs or {}, results=tensors)
            )
        return result


def steps_of(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[FusedStep]:
    """The ops inside of a fused op, the last of which computes its result; none if not known."""
    if function not in _FUSED:
        return []
    names, spell_out = _FUSED[function]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    with torch.no_grad(), _StepRecorder() as recording:
        try:
            spell_out(given)
        except Exception:  # noqa: BLE001 - a form of the op that is not written down here
            return []
    return [step for step in recording.steps if step.function not in ("get", "dim", "size")]


def _linear(given: Given) -> torch.Tensor:
    product: torch.Tensor = given["input"] @ given["weight"].T
    return product if given.get("bias") is None else product + given["bias"]


def _attention(given: Given) -> torch.Tensor:
    query, key, value = given["query"], given["key"], given["value"]
    scale = given.get("scale") or query.shape[-1] ** -0.5
    if given.get("enable_gqa"):
        key, value = (
            one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value)
        )
    scores = (query @ key.transpose(-1, -2)) * scale
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    mixed: torch.Tensor = scores.softmax(-1) @ value
    return mixed


def _softmax(given: Given) -> torch.Tensor:
    values, dim = given["input"], given.get("dim", -1)
    powers: torch.Tensor = (values - values.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


def _layer_norm(given: Given) -> torch.Tensor:
    dims = tuple(range(-len(given["normalized_shape"]), 0))
    normal = _normalized(given["input"], dims, given.get("eps", 1e-5))
    return _affine(normal, given.get("weight"), given.get("bias"))


def _normalized(values: torch.Tensor, dims: tuple[int, ...], eps: float) -> torch.Tensor:
    centered = values - values.mean(dims, keepdim=True)
    variance = centered.square().mean(dims, keepdim=True)
    return centered * (variance + eps).rsqrt()


def _affine(
    values: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    if weight is not None:
        values = values * weight
    return values if bias is None else values + bias


def _rms_norm(given: Given) -> torch.Tensor:
    values = given["input"]
    dims = tuple(range(-len(given["normalized_shape"]), 0))
    eps = given.get("eps")
    eps = torch.finfo(values.dtype).eps if eps is None else eps
    normal = values * (values.square().mean(dims, keepdim=True) + eps).rsqrt()
    return _affine(normal, given.get("weight"), None)


def _per_channel(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if tensor is None else tensor.view((1, -1) + (1,) * (like.dim() - 2))


def _batch_norm(given: Given) -> torch.Tensor:
    values = given["input"]
    if given.get("training"):
        raise NotImplementedError
    mean = given["running_mean"].view((1, -1) + (1,) * (values.dim() - 2))
    variance = given["running_var"].view(mean.shape)
    normal = (values - mean) * (variance + given.get("eps", 1e-5)).rsqrt()
    weight, bias = (_per_channel(given.get(name), values) for name in ("weight", "bias"))
    return _affine(normal, weight, bias)


def _group_norm(given: Given) -> torch.Tensor:
    values = given["input"]
    groups = values.reshape(len(values), given["num_groups"], -1)
    normal = _normalized(groups, (-1,), given.get("eps", 1e-5)).reshape(values.shape)
    weight, bias = (_per_channel(given.get(name), values) for name in ("weight", "bias"))
    return _affine(normal, weight, bias)


def _gelu(given: Given) -> torch.Tensor:
    values: torch.Tensor = given["input"]
    if given.get("approximate", "none") == "tanh":
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
        return (0.5 * values) * (1 + inner.tanh())
    return (0.5 * values) * (1 + torch.erf(values / math.sqrt(2)))


def _silu(given: Given) -> torch.Tensor:
    values: torch.Tensor = given["input"]
    return values * values.sigmoid()


def _multihead(given: Given) -> torch.Tensor:
    """Self-attention, as the fused kernel computes it."""
    heads = given["num_head"]
    together = linear(given["query"], given["qkv_weight"], given["qkv_bias"])
    query, key, value = (
        one.view(*one.shape[:2], heads, -1).transpose(1, 2) for one in together.chunk(3, -1)
    )
    result = scaled_dot_product_attention(query, key, value)
    return linear(result.transpose(1, 2).flatten(2), given["proj_weight"], given["proj_bias"])


_FUSED: Mapping[str, tuple[Sequence[str], Callable[[Given], torch.Tensor]]] = {
    "linear": (("input", "weight", "bias"), _linear),
    "scaleddotproductattention": (
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"),
        _attention,
    ),
    "softmax": (("input", "dim"), _softmax),
    "layernorm": (("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm),
    "rmsnorm": (("input", "normalized_shape", "weight", "eps"), _rms_norm),
    "batchnorm": (
        (
            *("input", "running_mean", "running_var", "weight", "bias", "training", "momentum"),
            "eps",
        ),
        _batch_norm,
    ),
    "groupnorm": (("input", "num_groups", "weight", "bias", "eps"), _group_norm),
    "nativemultiheadattention": (
        (
            *("query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias"),
            *("proj_weight", "proj_bias"),
        ),
        _multihead,
    ),
    "gelu": (("input", "approximate"), _gelu),
    "silu": (("input",), _silu),
}
"""By function: its arguments by position, as it is not written in Python, and its steps."""
