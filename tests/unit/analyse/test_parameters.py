"""Counting, checked against sets of tensors collected by hand."""

from __future__ import annotations

import random

import pytest

from tests import make
from torchglass.analyse.parameters import Counts, count
from torchglass.records.model import Model, Module, ModuleId, Slot, TensorId


def test_a_module_counts_its_own_and_all_descendant_parameters() -> None:
    model = make.model({"weight": (2,), "children": {"a": {"weight": (3, 4), "bias": (3,)}}})

    root, a = count(model)

    assert (root.own.parameters, root.total.parameters) == (2, 17)
    assert (a.own.parameters, a.total.parameters, a.total.bytes) == (15, 15, 60)


def test_a_tied_weight_counts_once_in_total_and_twice_per_use() -> None:
    model = make.model(
        {
            "children": {
                "embed": {"weight": (100, 16)},
                "head": {"weight": (100, 16), "tied": {"weight": "embed.weight"}},
            }
        }
    )

    root, embed, head = count(model)

    assert root.total.parameters == 1600
    assert root.per_use.parameters == 3200
    assert embed.total.parameters == head.total.parameters == 1600


def test_a_tensor_in_two_slots_of_one_module_is_counted_once() -> None:
    tied = {"a": (4,), "b": (4,), "tied": {"b": "a"}}

    (root,) = count(make.model(tied))

    assert root.own.parameters == root.total.parameters == 4
    assert root.per_use.parameters == 8


def test_packed_weights_are_parameters_that_do_not_train() -> None:
    slot = Slot(name="weight", role="packed", spec=make.spec(2, 3), tensor=TensorId(0))

    (counts,) = count(_model([_module(0, None, slots=(slot,))]))

    assert counts.total == Counts(parameters=6, parameter_bytes=24)
    assert counts.total.frozen == 6


def test_buffers_are_counted_separately() -> None:
    slot = Slot(name="mean", role="buffer", spec=make.spec(5), tensor=TensorId(0))

    (counts,) = count(_model([_module(0, None, slots=(slot,))]))

    assert counts.total == Counts(buffers=5, buffer_bytes=20)


def test_an_alias_shows_what_its_target_shows() -> None:
    modules = [
        _module(0, None, children=(1, 3)),
        _module(1, 0, children=(2,)),
        _module(2, 1, slots=(_weight(0, 6),)),
        _module(3, 0, alias_of=1),
    ]

    root, first, _, alias = count(_model(modules))

    assert alias == first
    assert root.total.parameters == 6
    assert root.per_use.parameters == 12


def test_a_module_that_contains_itself_has_consistent_totals() -> None:
    modules = [
        _module(0, None, children=(1, 2), slots=(_weight(0, 5),)),
        _module(1, 0, slots=(_weight(1, 7),)),
        _module(2, 0, children=(3,), slots=(_weight(2, 11),)),
        _module(3, 2, alias_of=0),
    ]

    root, leaf, child, inner = count(_model(modules))

    assert root.total.parameters == child.total.parameters == inner.total.parameters == 23
    assert leaf.total.parameters == 7
    assert root.per_use.parameters == 23


def test_a_chain_of_five_thousand_modules_is_counted() -> None:
    modules = [_module(0, None, children=(1,), slots=(_weight(0, 1),))]
    modules += [
        _module(i, i - 1, children=(i + 1,) if i < 4999 else (), slots=(_weight(i, 1),))
        for i in range(1, 5000)
    ]

    counts = count(_model(modules))

    assert counts[0].total.parameters == 5000
    assert counts[-1].total.parameters == 1


@pytest.mark.parametrize("seed", range(40))
def test_totals_match_the_sets_of_reachable_tensors(seed: int) -> None:
    model = _random_model(random.Random(seed))
    sizes = {slot.tensor: slot.spec.elements for m in model.modules for slot in m.slots}

    counts = count(model)

    for module in model.modules:
        assert counts[module.id].total.parameters == sum(
            sizes[tensor] for tensor in _reachable(model, module.id)
        )


def _reachable(model: Model, top: ModuleId) -> set[TensorId]:
    seen, waiting = set(), [top]
    while waiting:
        module = model[waiting.pop()]
        if module.id not in seen:
            seen.add(module.id)
            waiting += module.children if module.alias_of is None else (module.alias_of,)
    return {slot.tensor for number in seen for slot in model[number].slots}


def _random_model(chance: random.Random) -> Model:
    """A random tree in which tensors are tied and modules stand for earlier ones."""
    parents: list[int | None] = [None]
    line = [0]
    for number in range(1, chance.randint(2, 40)):
        del line[chance.randint(1, len(line)) :]
        parents.append(line[-1])
        line.append(number)
    leaves = set(range(1, len(parents))) - set(parents)
    modules: list[Module] = []
    for number, parent in enumerate(parents):
        alias = chance.randrange(number) if number in leaves and chance.random() < 0.4 else None
        tensors = [] if alias is not None else chance.choices(range(15), k=chance.randint(0, 3))
        modules.append(
            _module(
                number,
                parent,
                children=tuple(i for i, other in enumerate(parents) if other == number),
                slots=tuple(_weight(tensor, 1 << tensor) for tensor in tensors),
                alias_of=_first(modules, alias),
            )
        )
    return _model(modules)


def _first(modules: list[Module], alias: int | None) -> int | None:
    """Where an alias of an alias leads, since records point to the first."""
    return alias if alias is None or (to := modules[alias].alias_of) is None else to


def _weight(tensor: int, size: int) -> Slot:
    return Slot(
        name=f"w{tensor}",
        role="parameter",
        spec=make.spec(size),
        tensor=TensorId(tensor),
        trainable=True,
    )


def _module(
    number: int,
    parent: int | None,
    *,
    children: tuple[int, ...] = (),
    slots: tuple[Slot, ...] = (),
    alias_of: int | None = None,
) -> Module:
    return Module(
        id=ModuleId(number),
        path=str(number) if number else "",
        name=str(number) if number else "",
        class_name="tests.Net",
        parent=None if parent is None else ModuleId(parent),
        children=tuple(map(ModuleId, children)),
        slots=slots,
        alias_of=None if alias_of is None else ModuleId(alias_of),
    )


def _model(modules: list[Module]) -> Model:
    return Model(name="Net", modules=tuple(modules))
