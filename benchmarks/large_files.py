"""What reading files of gigabytes costs: a trace of a GPU job, and two checkpoints of 7B.

    python -m benchmarks.large_files trace --gigabytes 1
    python -m benchmarks.large_files checkpoints --layers 32

Files are generated into a temporary folder and deleted at the end. Each reader runs in a process of
its own. The peak of its resident memory (VmHWM) includes the pages of mapped files, which the
system can drop at any time; RssAnon is the memory that it cannot drop.
"""

from __future__ import annotations

import argparse
import gzip
import json
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from benchmarks.fresh import fresh

if TYPE_CHECKING:
    import torch

WIDTH, INNER, WORDS, RANK = 4096, 11008, 32000, 8
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate files, read them, and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_files", description=__doc__)
    parser.add_argument("kind", choices=["trace", "checkpoints"])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the trace (%(default)s)")
    parser.add_argument("--layers", type=int, default=32, help="of Llama 7B (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if options.kind == "trace":
            write_trace(folder / "trace.json", int(options.gigabytes * 1e9))
            compress(folder / "trace.json", folder / "trace.json.gz")
            for path in sorted(folder.iterdir()):
                show(path.name, path.stat().st_size, fresh(read_trace, path=str(path)))
        else:
            paths = [folder / "base.safetensors", folder / "tuned.safetensors"]
            for path, is_tuned in zip(paths, (False, True), strict=True):
                write_checkpoint(path, options.layers, is_tuned=is_tuned)
            size = paths[0].stat().st_size
            show("two checkpoints", size, fresh(compare, a=str(paths[0]), b=str(paths[1])))
    return 0


def show(name: str, size: int, found: dict[str, Any]) -> None:
    print(
        f"{name}, {size / 1e9:.2f} GB: {found['cpu_seconds']:.1f} s CPU, "
        f"{found['seconds']:.1f} s; VmHWM {found['resident'] / 1e6:.0f} MB, "
        f"RssAnon at most {found['anonymous'] / 1e6:.0f} MB ({found['said']})",
        flush=True,
    )


def read_trace(path: str) -> dict[str, Any]:
    """What `tg.profile` of a trace costs."""
    import torchglass as tg

    return _measured(lambda: f"{tg.profile(path).times.events:,} events")


def compare(a: str, b: str) -> dict[str, Any]:
    """What `tg.compare` of two checkpoints costs, and whether it found what was planted."""
    import torchglass as tg

    def said() -> str:
        changes = list(tg.compare(a, b).tensors or ())
        low_rank = sum(one.rank == RANK for one in changes)
        bad = sum(bool(one.nan_after) for one in changes)
        equal = sum(one.is_equal for one in changes)
        return f"{len(changes)} tensors: {equal} equal, {low_rank} of rank {RANK}, {bad} with NaN"

    return _measured(said)


def _measured(run: Callable[[], str]) -> dict[str, Any]:
    done, most = threading.Event(), [0]

    def look() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], _status_bytes("RssAnon"))

    looker = threading.Thread(target=look)
    looker.start()
    wall, cpu = time.perf_counter(), time.process_time()
    said = run()
    found = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    done.set()
    looker.join()
    return {**found, "resident": _status_bytes("VmHWM"), "anonymous": most[0], "said": said}


def _status_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def write_trace(path: Path, size: int) -> None:
    """A trace as torch.profiler writes it with stacks and modules, of about this many bytes."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        number = 0
        while file.tell() < size:
            events = [event for one in range(number, number + 500) for event in _layer_events(one)]
            file.write(",\n".join(map(json.dumps, events)) + ",\n")
            number += 500
        file.write('  {"ph": "M", "name": "end", "pid": 0, "tid": 0}\n  ]\n}\n')


def _layer_events(number: int) -> Iterator[dict[str, Any]]:
    """A layer with an op, its launch, its kernel, the arrow between them, and its backward."""
    start, layer = number * 40.0, number % 400
    yield _event("python_function", "train.py(41): step", start, 39.0, number, {"Python id": 1})
    yield _event("python_function", f"nn.Module: Linear_{layer}", start + 1, 30.0, number, {})
    for place, (name, thread) in enumerate((("aten::addmm", 1), ("AddmmBackward0", 2))):
        at, link = start + 2 + 14 * place, 2 * number + place
        shapes = [[512, 4096], [4096, 4096]]
        args: dict[str, Any] = {"External id": link, "Sequence number": number}
        args["Fwd thread id"] = place
        args |= {"Record function id": 0, "Input Dims": shapes, "Input type": ["float", "float"]}
        yield _event("cpu_op", name, at, 12.0, thread, args)
        runtime = {"External id": link, "cbid": 211, "correlation": link}
        yield _event("cuda_runtime", "cudaLaunchKernel", at + 1, 5.0, thread, runtime)
        kernel = {"device": 0, "context": 1, "stream": 7, "correlation": link, "grid": [64, 2, 1]}
        kernel |= {"registers per thread": 128, "shared memory": 49152, "block": [256, 1, 1]}
        kernel |= {"est. achieved occupancy %": 25, "External id": link}
        yield _event("kernel", f"ampere_bf16_gemm_{layer % 50}", at + 8, 9.0, 7, kernel)
        for phase in "sf":
            arrow = {"ph": phase, "id": link, "pid": 7, "tid": thread, "ts": at + 1}
            yield {**arrow, "cat": "ac2g", "name": "ac2g", "bp": "e"}


def _event(
    category: str, name: str, start: float, took: float, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    place = {"pid": 0 if category == "kernel" else 1, "tid": min(thread, 7)}
    times = {"ts": 1e12 + start, "dur": took}
    return {"ph": "X", "cat": category, "name": name, **place, **times, "args": args}


def compress(path: Path, to: Path) -> None:
    with path.open("rb") as plain, gzip.open(to, "wb", compresslevel=1) as packed:
        while chunk := plain.read(1 << 22):
            packed.write(chunk)


def write_checkpoint(path: Path, layers: int, *, is_tuned: bool) -> None:
    """Llama 7B in bfloat16, one tensor at a time.

    Tuned, the queries and values have a change of rank 8, the MLPs of every other layer a change of
    full rank, one tensor has a NaN, and all else is equal.
    """
    import torch

    shapes, offsets, end = dict(_shapes(layers)), {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        offsets[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(offsets).encode()
    values = torch.randn(WIDTH * WORDS, generator=torch.Generator().manual_seed(0)).bfloat16()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for number, (name, shape) in enumerate(shapes.items()):
            _write_tensor(file, values, number, name, shape, is_tuned=is_tuned)


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (WORDS, WIDTH)
    for layer in range(layers):
        for name in _ATTENTION:
            yield f"model.layers.{layer}.self_attn.{name}.weight", (WIDTH, WIDTH)
        yield f"model.layers.{layer}.mlp.gate_proj.weight", (INNER, WIDTH)
        yield f"model.layers.{layer}.mlp.up_proj.weight", (INNER, WIDTH)
        yield f"model.layers.{layer}.mlp.down_proj.weight", (WIDTH, INNER)
        yield f"model.layers.{layer}.input_layernorm.weight", (WIDTH,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (WORDS, WIDTH)


def _write_tensor(
    file: BinaryIO,
    values: torch.Tensor,
    number: int,
    name: str,
    shape: tuple[int, ...],
    *,
    is_tuned: bool,
) -> None:
    import torch

    count = torch.Size(shape).numel()
    start = number * 7919 % (len(values) - count + 1)
    tensor = values[start : start + count].reshape(shape)
    if is_tuned and ("q_proj" in name or "v_proj" in name):
        made = torch.Generator().manual_seed(number)
        low, high = torch.randn(2, RANK, WIDTH, generator=made)
        tensor = (tensor.float() + low.T @ high * 0.05).bfloat16()
    elif is_tuned and "mlp" in name and int(name.split(".")[2]) % 2:
        tensor = (tensor.float() + values[:count].reshape(shape) * 0.01).bfloat16()
    elif is_tuned and name == "model.norm.weight":
        tensor = tensor.clone()
        tensor[7] = torch.nan
    file.write(tensor.contiguous().view(torch.uint8).numpy().data)


if __name__ == "__main__":
    from benchmarks import large_files  # noqa: PLW0406 - `fresh` calls functions by their module

    raise SystemExit(large_files.main())
