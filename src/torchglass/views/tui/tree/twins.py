"""The other places of what stands in a model more than once."""

from __future__ import annotations

from torchglass.records.model import Model, Module, ModuleId


def twins(model: Model, module: Module) -> list[ModuleId]:
    """Where else the module, or a tensor that it holds, stands; itself included if there is any."""
    own = module.id if module.alias_of is None else module.alias_of
    found = {one.id for one in model.modules if own in (one.id, one.alias_of)}
    for slot in module.slots:
        for place in model.tied.get(slot.tensor, ()):
            other = model.find(place.rpartition(".")[0])
            if other is not None:
                found.add(other.id)
    return sorted(found) if len(found) > 1 else []


def next_twin(model: Model, module: Module) -> Module | None:
    """The place after this one, around the end; None where there is no other."""
    places = twins(model, module)
    if not places:
        return None
    return model[places[(places.index(module.id) + 1) % len(places)]]
