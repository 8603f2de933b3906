"""How many random renames, moves and edits of modules `tg.compare` finds.

    python -m benchmarks.divergence.edits --trials 200

Each trial builds a model, copies it, plants a few edits in the copy, and asks whether every planted
edit is in the comparison. In half of the trials all weights of the copy were trained further, so
that values do not tell which module is which.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import torchglass as tg

_KINDS = ("rename", "move", "shape", "arguments", "class", "dtype", "added", "removed", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """An edit, with the number of the module that it was made to."""

    kind: str
    module: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials and print the score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.divergence.edits")
    parser.add_argument("--trials", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial (%(default)s)")
    options = parser.parse_args(arguments)
    planted, found = score(range(options.seed, options.seed + options.trials))
    print("| edit | found |\n|---|---|")
    for kind in _KINDS:
        print(f"| {kind} | {found[kind]} of {planted[kind]} |")
    share = found.total() / planted.total()
    print(f"| all | {found.total()} of {planted.total()} ({share:.1%}) |")
    return 0


def score(seeds: Sequence[int]) -> tuple[Counter[str], Counter[str]]:
    """The number of edits that were planted, and of those that were found, by kind."""
    planted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for seed in seeds:
        for edit, is_found in trial(seed):
            planted[edit.kind] += 1
            found[edit.kind] += is_found
    return planted, found


def trial(seed: int) -> list[tuple[Planted, bool]]:
    """Plant edits in a copy of a model; which of them are found."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    before = _model(chance)
    for number, module in enumerate(before.modules()):
        module.number = number  # type: ignore[assignment]
    after = copy.deepcopy(before)
    if seed % 2:
        with torch.no_grad():
            for parameter in after.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    edits: list[Planted] = []
    for _ in range(chance.randint(1, 4)):
        kind = chance.choice(_KINDS)
        edit = _PLANT[kind](after, chance, {one.module for one in edits})
        if edit is not None:
            edits.append(Planted(kind=kind, module=edit))
    comparison = tg.compare(before, after)
    old, new = _paths(before), _paths(after)
    return [(edit, _is_found(edit, comparison, old, new)) for edit in edits]


def _is_found(
    edit: Planted, comparison: tg.Comparison, old: dict[int, str], new: dict[int, str]
) -> bool:
    structure = comparison.structure
    if structure is None:
        return False
    if edit.kind == "removed":
        return old[edit.module] in {one.path for one in structure.removed}
    path = new[edit.module]
    change = structure.changes.get(path)
    if edit.kind == "added":
        return change is not None and change.verdict == "added"
    if structure.pairs.get(path) != old[edit.module] or change is None:
        return False
    return {
        "rename": change.path_before is not None,
        "move": change.path_before is not None,
        "shape": any(
            one.before and one.after and one.before.shape != one.after.shape for one in change.slots
        ),
        "arguments": change.extra_before is not None,
        "class": bool(change.class_before),
        "dtype": any(
            one.before and one.after and one.before.dtype != one.after.dtype for one in change.slots
        ),
        "shared": bool(change.sharing),
    }[edit.kind]


def _model(chance: random.Random) -> nn.Module:
    width = 8 * chance.randint(1, 4)

    def attention() -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(width, width) for name in ("q", "k", "v", "out")})

    def block() -> nn.Module:
        middle = width * chance.randint(2, 4)
        return nn.ModuleDict(
            {
                "norm1": nn.LayerNorm(width),
                "attention": attention(),
                "norm2": nn.LayerNorm(width),
                "mlp": nn.Sequential(
                    nn.Linear(width, middle), nn.GELU(), nn.Linear(middle, width), nn.Dropout(0.1)
                ),
            }
        )

    return nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
            "embed": nn.Embedding(50, width),
            "blocks": nn.ModuleList(block() for _ in range(chance.randint(2, 6))),
            "neck": nn.ModuleDict({"norm": nn.LayerNorm(width), "down": nn.Linear(width, 6)}),
            "head": nn.Linear(width, chance.randint(5, 20)),
        }
    )


def _paths(model: nn.Module) -> dict[int, str]:
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        if hasattr(module, "number"):
            found.setdefault(int(module.number), path)
    return found


def _places(
    model: nn.Module, used: set[int], wanted: Callable[[nn.Module], bool]
) -> list[tuple[nn.Module, str]]:
    """The parents and names of modules that were not edited yet, nor anything inside of them."""
    return [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if wanted(child)
        and not any(getattr(one, "number", -1) in used for one in child.modules())
        and getattr(parent, "number", -1) not in used
        and not any(hasattr(one, "shares") for one in child.modules())
    ]


def _chosen(
    model: nn.Module,
    chance: random.Random,
    used: set[int],
    wanted: Callable[[nn.Module], bool] = lambda module: any(True for _ in module.parameters()),
) -> tuple[nn.Module, str] | None:
    places = _places(model, used, wanted)
    return chance.choice(places) if places else None


def _number(module: nn.Module) -> int:
    return int(module.number)  # type: ignore[arg-type]


def _rename(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    place = _chosen(model, chance, used)
    if place is None:
        return None
    parent, name = place
    children = list(parent._modules.items())
    parent._modules.clear()
    for old, child in children:
        parent._modules[f"{old}_new" if old == name else old] = child
    return _number(parent._modules[f"{name}_new"])  # type: ignore[arg-type]


def _move(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    place = _chosen(model, chance, used)
    if place is None:
        return None
    parent, name = place
    moved = parent._modules[name]
    inside = {id(one) for one in moved.modules()} if moved is not None else set()
    homes = [
        one
        for one in model.modules()
        if isinstance(one, nn.ModuleDict) and id(one) not in inside and one is not parent
    ]
    if moved is None or not homes:
        return None
    del parent._modules[name]
    chance.choice(homes)._modules[f"moved_{_number(moved)}"] = moved
    return _number(moved)


def _replaced(
    model: nn.Module,
    chance: random.Random,
    used: set[int],
    wanted: Callable[[nn.Module], bool],
    make: Callable[[Any], nn.Module],
) -> int | None:
    place = _chosen(model, chance, used, wanted)
    if place is None:
        return None
    parent, name = place
    old = parent._modules[name]
    new = make(old)
    new.number = old.number  # type: ignore[union-attr]
    parent._modules[name] = new
    return _number(new)


def _shape(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    return _replaced(
        model,
        chance,
        used,
        lambda one: isinstance(one, nn.Linear),
        lambda one: nn.Linear(one.in_features, one.out_features + 3),
    )


def _arguments(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    def changed(module: Any) -> nn.Module:
        module = copy.deepcopy(module)
        module.eps = 1e-3
        return module  # type: ignore[no-any-return]

    return _replaced(model, chance, used, lambda one: hasattr(one, "eps"), changed)


def _class(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    return _replaced(
        model,
        chance,
        used,
        lambda one: isinstance(one, (nn.LayerNorm, nn.GELU)),
        lambda one: nn.SiLU() if isinstance(one, nn.GELU) else nn.RMSNorm(one.normalized_shape),
    )


def _dtype(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    return _replaced(
        model,
        chance,
        used,
        lambda one: isinstance(one, (nn.Linear, nn.LayerNorm)),
        lambda one: copy.deepcopy(one).to(torch.bfloat16),
    )


def _added(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    homes = [one for one in model.modules() if isinstance(one, nn.ModuleDict)]
    number = 10_000 + len(used)
    added = nn.Linear(7, chance.randint(2, 9))
    added.number = number  # type: ignore[assignment]
    chance.choice(homes)._modules[f"extra_{number}"] = added
    return number


def _removed(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    place = _chosen(model, chance, used)
    if place is None:
        return None
    parent, name = place
    gone = parent._modules.pop(name)
    return None if gone is None else _number(gone)


def _shared(model: nn.Module, chance: random.Random, used: set[int]) -> int | None:
    linears = [
        one
        for one in model.modules()
        if isinstance(one, nn.Linear)
        and getattr(one, "number", -1) not in used
        and not hasattr(one, "shares")
    ]
    chance.shuffle(linears)
    for one in linears:
        for other in linears:
            if one is not other and one.weight.shape == other.weight.shape:
                other.weight = one.weight
                one.shares = True  # type: ignore[assignment]
                return _number(other)
    return None


_PLANT = {
    "rename": _rename,
    "move": _move,
    "shape": _shape,
    "arguments": _arguments,
    "class": _class,
    "dtype": _dtype,
    "added": _added,
    "removed": _removed,
    "shared": _shared,
}


if __name__ == "__main__":
    raise SystemExit(main())
