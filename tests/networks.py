"""Two small networks as records, with one forward each: what the summary's golden files show."""

from __future__ import annotations

from tests import make
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord

_BLOCKS = 3


def resnet() -> Model:
    """A residual network in the small: convolutions, norms, a pool, a head."""
    return make.model(
        {
            "children": {
                "conv1": _conv(3, 64, 7, stride=2),
                "bn1": _norm(64),
                "relu": _leaf("torch.nn.modules.activation.ReLU", "inplace=True"),
                "maxpool": _leaf(
                    "torch.nn.modules.pooling.MaxPool2d",
                    "kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False",
                ),
                "layer1": {"children": {"0": _basic_block(), "1": _basic_block()}},
                "fc": _linear(64, 1000),
            }
        },
        name="ResNet",
    )


def resnet_calls() -> list[CallRecord]:
    """One image through `resnet`, the ReLU writing into what it was given."""
    outer = {
        "conv1": (1, 64, 112, 112),
        "bn1": (1, 64, 112, 112),
        "relu": (1, 64, 112, 112),
        "maxpool": (1, 64, 56, 56),
        "layer1": (1, 64, 56, 56),
    }
    calls = [make.call(0, inputs=[(1, 3, 224, 224)], outputs=[(1, 1000)])]
    for path, shape in outer.items():
        memory = 1 if path in {"bn1", "relu"} else len(calls) + 10
        output = make.value(*shape, memory=memory)
        calls.append(make.call(len(calls), path, parent=0, outputs=[output]))
    layer = len(calls) - 1
    for path in ("layer1.0", "layer1.0.conv1", "layer1.0.bn1", "layer1.1"):
        calls.append(make.call(len(calls), path, parent=layer, outputs=[(1, 64, 56, 56)]))
    return [*calls, make.call(len(calls), "fc", parent=0, inputs=[(1, 64)], outputs=[(1, 1000)])]


def gpt() -> Model:
    """A transformer whose head is tied to its embedding, with blocks that are all alike."""
    width = 32
    embedding = {
        "class": "torch.nn.modules.sparse.Embedding",
        "extra": f"100, {width}",
        "weight": (100, width),
    }
    block = {
        "class": "nets.Block",
        "children": {
            "norm": {
                "class": "torch.nn.modules.normalization.LayerNorm",
                "extra": f"({width},), eps=1e-05, elementwise_affine=True",
                "weight": (width,),
                "bias": (width,),
            },
            "mlp": {
                "children": {
                    "0": _linear(width, 4 * width),
                    "1": _leaf("torch.nn.modules.activation.GELU", "approximate='none'"),
                    "2": _linear(4 * width, width),
                }
            },
        },
    }
    blocks = {str(index): block for index in range(_BLOCKS)}
    head = {**_linear(width, 100, bias=False), "tied": {"weight": "embed.weight"}}
    container = "torch.nn.modules.container.ModuleList"
    return make.model(
        {
            "children": {
                "embed": embedding,
                "blocks": {"class": container, "children": blocks},
                "head": head,
            }
        },
        name="GPT",
    )


def gpt_calls() -> list[CallRecord]:
    """Two texts of seven tokens through `gpt`; each block uses its norm twice."""
    hidden = (2, 7, 32)
    calls = [
        make.call(0, inputs=[(2, 7)], outputs=[(2, 7, 100)]),
        make.call(1, "embed", parent=0, inputs=[(2, 7)], outputs=[hidden]),
    ]
    for block in range(_BLOCKS):
        path, own = f"blocks.{block}", len(calls)
        calls.append(make.call(own, path, parent=0, inputs=[hidden], outputs=[hidden]))
        for number in (1, 2):
            calls.append(
                make.call(len(calls), f"{path}.norm", parent=own, number=number, outputs=[hidden])
            )
        calls.append(make.call(len(calls), f"{path}.mlp", parent=own, outputs=[hidden]))
    return [*calls, make.call(len(calls), "head", parent=0, inputs=[hidden], outputs=[(2, 7, 100)])]


def _basic_block() -> make.Tree:
    return {"class": "nets.BasicBlock", "children": {"conv1": _conv(64, 64, 3), "bn1": _norm(64)}}


def _conv(into: int, out: int, size: int, stride: int = 1) -> make.Tree:
    return {
        "class": "torch.nn.modules.conv.Conv2d",
        "extra": f"{into}, {out}, kernel_size=({size}, {size}), stride=({stride}, {stride})",
        "weight": (out, into, size, size),
    }


def _norm(features: int) -> make.Tree:
    return {
        "class": "torch.nn.modules.batchnorm.BatchNorm2d",
        "extra": f"{features}, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
        "weight": (features,),
        "bias": (features,),
    }


def _linear(into: int, out: int, *, bias: bool = True) -> make.Tree:
    return {
        "class": "torch.nn.modules.linear.Linear",
        "extra": f"in_features={into}, out_features={out}, bias={bias}",
        "weight": (out, into),
        **({"bias": (out,)} if bias else {}),
    }


def _leaf(kind: str, extra: str) -> make.Tree:
    return {"class": kind, "extra": extra}
