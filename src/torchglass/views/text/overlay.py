"""Each layer of a model with what it took, drawn as a performance overlay.

layer1.0.conv1  36.9K params   Shape: 64×64×3×3   Time: 1.23ms   Mem: 144.0 KB
├─ forward()    ⚡ 850.00μs     Input: 1×64×56×56   Output: 1×64×56×56
├─ backward()   ⚡ 380.00μs     Gradient: computed
└─ memory       📊 144.0 KB     Parameters: 36,864 × 4 bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchglass.analyse.latency import ModuleTime, Times
from torchglass.analyse.model.parameters import Counts
from torchglass.errors import ViewError
from torchglass.records.model import Module
from torchglass.records.trace import Value
from torchglass.views.columns import shape_text
from torchglass.views.formats import format_bytes, format_count, format_time, harmless, pad, width
from torchglass.views.text.fitting import shortened, wrapped
from torchglass.views.text.profile import Profiled

_GAP = "   "
_ARMS = ("├─ forward()", "├─ backward()", "└─ memory")


def overlay_text(
    profiled: Profiled,
    paths: Iterable[str] = (),
    memory: Mapping[str, int] | None = None,
    room: int | None = None,
) -> str:
    """The layers of these paths, or else all that ran and have parameters or no children.

    `memory` gives the bytes of activations by path, where they are known.
    """
    chosen = list(paths) or list(_layers(profiled))
    blocks = [_block(profiled, path, (memory or {}).get(path)) for path in chosen]
    first, second = (
        max((width(line[column]) for block in blocks for line in block), default=0)
        for column in (0, 1)
    )
    if room is not None:
        first = min(first, max(room // 4, width(_ARMS[1])))

    def text(name: str, amount: str, *rest: str) -> str:
        before = _GAP.join((pad(shortened(name, first), first), pad(amount, second), ""))
        return "\n".join(wrapped(_GAP.join(rest), room, before=before))

    return "\n\n".join("\n".join(text(*line) for line in block) for block in blocks)


def _layers(profiled: Profiled) -> Iterator[str]:
    for path, time in profiled.latency.modules.items():
        module = profiled.module(time)
        if module is not None and time.calls and (module.slots or not module.children):
            yield path


def _block(profiled: Profiled, path: str, activations: int | None) -> list[Sequence[str]]:
    time, module = profiled.latency.modules.get(path), profiled.model.find(path)
    if time is None or module is None:
        raise ViewError(f"no module {path!r} ran; profile.rows lists those that did")
    own = profiled.counts(module).total
    held = format_bytes(own.bytes + (activations or 0))
    forward, backward, memory = _ARMS
    call = profiled.first_calls.get(path)
    return [
        (
            harmless(path) or harmless(profiled.model.name),
            f"{format_count(own.parameters)} params",
            *_weight(module),
            f"Time: {format_time(time.total_ns / 1e9)}",
            f"Mem: {held}",
        ),
        (
            forward,
            _flash(time.forward),
            f"Input: {_shapes(call.inputs if call else ())}",
            f"Output: {_shapes(call.outputs if call else ())}",
        ),
        (backward, _flash(time.backward), f"Gradient: {_gradient(time)}"),
        (memory, f"📊 {held}", *_memory(module, own, activations)),
    ]


def _weight(module: Module) -> list[str]:
    shapes = [shape_text(slot.spec) for slot in module.slots if slot.role != "buffer"]
    return [f"Shape: {shapes[0]}"] if shapes else []


def _flash(times: Times | None) -> str:
    return "⚡ –" if times is None else f"⚡ {format_time(times.total_ns / 1e9)}"


def _gradient(time: ModuleTime) -> str:
    return "computed" if time.backward is not None else "none"


def _shapes(values: Sequence[Value]) -> str:
    return ", ".join(shape_text(value.spec) for value in values) or "no tensor"


def _memory(module: Module, held: Counts, activations: int | None) -> Iterator[str]:
    parameters = [slot.spec for slot in module.slots if slot.role == "parameter"]
    count = sum(spec.elements for spec in parameters)
    sizes = {spec.bytes // spec.elements for spec in parameters if spec.elements}
    if len(sizes) == 1 and count * next(iter(sizes)) == held.parameter_bytes:
        yield f"Parameters: {count:,} × {sizes.pop()} bytes"
    else:
        yield f"Parameters: {format_bytes(held.parameter_bytes)}"
    if held.buffer_bytes:
        yield f"Buffers: {format_bytes(held.buffer_bytes)}"
    if activations is not None:
        yield f"Activations: {format_bytes(activations)}"
