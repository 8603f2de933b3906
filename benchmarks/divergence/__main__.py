"""How many planted bugs are named, and how many correct ports raise an alarm."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torchglass as tg
from benchmarks.divergence.cases import Case, build, chosen, is_right
from benchmarks.report import write_between_marks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was said about a case in one dtype."""

    case: Case
    dtype: str
    is_right: bool
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, print the score and what was missed, and write it to a page if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.divergence", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of the names of cases")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="renew a page")
    options = parser.parse_args(arguments)
    results = [one for case in chosen(options.only) for one in run(case, options.seed)]
    text = markdown(results)
    print(text)
    for one in results:
        if not one.is_right:
            print(f"missed: {one.case.name} ({one.dtype}): {one.said}")
    if not options.only:
        print(f"first divergence: {cost():.1f} times the forward of one model")
        count, seconds = many_modules()
        print(f"{count:,} against {count:,} modules, values included: {seconds:.1f} s CPU")
    if options.write:
        write_between_marks(options.write, text)
    return 0


def run(case: Case, seed: int = 0) -> Iterator[Result]:
    """Compare the models of a case, in each dtype, and the port in half precision."""
    models = build(case, seed)
    for name, dtype in DTYPES.items():
        reference = copy.deepcopy(models.reference).to(dtype)
        port = copy.deepcopy(models.port).to(dtype)
        yield _result(case, name, reference, port, models.inputs)
    if case.edit.is_same:
        port = copy.deepcopy(models.port).to(torch.bfloat16)
        yield _result(case, "float32, port bfloat16", models.reference, port, models.inputs)


def _result(case: Case, dtype: str, a: Any, b: Any, inputs: tuple[Any, ...]) -> Result:
    found = tg.compare(a, b, *inputs, values=False)
    said = found.summary.rpartition("First divergence: ")[2]
    return Result(
        case=case, dtype=dtype, is_right=is_right(case, found.first_divergence), said=said
    )


def markdown(results: Sequence[Result]) -> str:
    """The score as a table."""
    lines = [
        "| dtype | bugs whose op is named | correct ports without a divergence |",
        "|---|---|---|",
    ]
    for dtype in dict.fromkeys(one.dtype for one in results):
        of_dtype = [one for one in results if one.dtype == dtype]
        bugs = [one for one in of_dtype if not one.case.edit.is_same]
        ports = [one for one in of_dtype if one.case.edit.is_same]
        cells = (f"{sum(one.is_right for one in part)} of {len(part)}" for part in (bugs, ports))
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost(width: int = 512, layers: int = 6, rounds: int = 3) -> float:
    """CPU time of finding the first divergence of a transformer, over that of one forward.

    With one thread: several that wait for each other on a busy machine take CPU time, too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _cost(width, layers, rounds)
    finally:
        torch.set_num_threads(threads)


def _cost(width: int, layers: int, rounds: int) -> float:
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    a = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    b = copy.deepcopy(a)
    b.layers[layers - 1].norm1.eps = 0.1
    x = torch.randn(4, 128, width)
    ratios = []
    for _ in range(rounds):
        with torch.no_grad():
            start = time.process_time()
            a(x)
            forward = time.process_time() - start
        start = time.process_time()
        found = tg.compare(a, b, x, values=False).first_divergence
        ratios.append((time.process_time() - start) / forward)
        if found is None or found.b is None or "norm1" not in found.b.path:
            raise RuntimeError(f"the planted bug was not found: {found}")
    return statistics.median(ratios)


def many_modules(blocks: int = 1_000) -> tuple[int, float]:
    """The number of modules of a large model, and the CPU seconds to compare it with a copy.

    The copy was trained further, and the module that contains all blocks has another name.
    """
    from torch import nn

    def block() -> nn.Module:
        attention = nn.ModuleDict({name: nn.Linear(8, 8) for name in "qko"})
        mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        return nn.ModuleDict({"norm": nn.LayerNorm(8), "attention": attention, "mlp": mlp})

    before = nn.ModuleDict({"layers": nn.ModuleList(block() for _ in range(blocks))})
    trained = copy.deepcopy(before["layers"])
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    after = nn.ModuleDict({"blocks": trained})
    start = time.process_time()
    found = tg.compare(before, after)
    seconds = time.process_time() - start
    renamed = found.structure.changes.get("blocks") if found.structure else None
    if renamed is None or renamed.path_before != "layers":
        raise RuntimeError("the planted rename was not found")
    return sum(1 for _ in before.modules()), seconds


if __name__ == "__main__":
    raise SystemExit(main())
